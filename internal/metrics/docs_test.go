package metrics

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// TestPageListsEveryMetric compares docs/metrics.md with the metrics that exist.
func TestPageListsEveryMetric(t *testing.T) {
	t.Parallel()
	m := New(Options{Callers: []string{"ann"}})
	m.ToolCall(ToolCall{Ending: string(runtime.PolicyDenied)})
	m.Command(runtime.Timeout)
	m.Lease("t", true)
	m.LeaseEnded("t", "", nil)
	m.Verdict("p", "allow")
	m.ApprovalDecided("approved")
	m.StoreWrite("x", 0)
	m.Watch(func(context.Context) (Figures, error) {
		return Figures{
			Pools: []Pool{{}}, Sandboxes: map[string]int{"warm": 1}, Approvals: &Approvals{}, Audit: &Audit{},
		}, nil
	}, func() Space { return Space{} })
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile(`orchestrator_[a-z_]+`)
	have := map[string]bool{}
	for _, f := range families {
		if name.MatchString(f.GetName()) {
			have[f.GetName()] = true
		}
	}
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, n := range name.FindAllString(string(page), -1) {
		listed[n] = true
	}
	if got, want := slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(have)); !slices.Equal(got, want) {
		t.Errorf("docs/metrics.md lists %q, want %q", got, want)
	}
}
