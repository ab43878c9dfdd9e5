package engine

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/metrics"
)

// metricLines returns the samples of m whose name has one of the prefixes.
func metricLines(tb testing.TB, m *metrics.Metrics, prefixes ...string) (lines []string) {
	tb.Helper()
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		for _, p := range prefixes {
			if strings.HasPrefix(line, p) {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
	}
	return lines
}

func TestToolCallsAreCountedOnce(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{Runtime: "fake"})
	s := newWorld(t).governedWith(t, audit.Options{}, func(o *Options) { o.Metrics = m })
	s.call(t, agent, "system.bash", bash("sudo true"))                    // denied by the policy
	s.call(t, agent, "fs.stat", v1.ToolCall{Input: []byte(`{"path":1}`)}) // disabled
	for range 2 {                                                         // the second is refused by the tool's rate, before it is recorded
		_, _ = s.Governed.CallTool(t.Context(), agent, "fs.list", v1.ToolCall{Input: []byte(`{"path":1}`)}, governed.Watch{})
	}
	keyed := agent
	keyed.Key = "once"
	for range 2 { // the second gets the answer of the first
		s.call(t, keyed, "system.bash", bash("sudo false"))
	}
	for _, name := range []string{"no.such.tool", "another"} {
		if _, err := s.Governed.CallTool(t.Context(), agent, name, bash("x"), governed.Watch{}); err == nil {
			t.Errorf("CallTool(%s) succeeded, want an error", name)
		}
	}
	got := metricLines(t, m, "orchestrator_tool_call", "orchestrator_policy", "orchestrator_audit_head")
	want := []string{
		`orchestrator_audit_head_records `,
		`orchestrator_policy_verdicts_total{profile="team",verdict="deny"} 2`,
		`orchestrator_tool_call_refusals_total{class="denylist"} 2`,
		`orchestrator_tool_call_refusals_total{class="disabled"} 1`,
		`orchestrator_tool_call_refusals_total{class="rate"} 1`,
		`orchestrator_tool_calls_total{ending="failed",profile="team",runtime="fake",tool="fs.list"} 1`,
		`orchestrator_tool_calls_total{ending="failed",profile="team",runtime="fake",tool="unknown"} 2`,
		`orchestrator_tool_calls_total{ending="policy_denied",profile="team",runtime="fake",tool="fs.list"} 1`,
		`orchestrator_tool_calls_total{ending="policy_denied",profile="team",runtime="fake",tool="fs.stat"} 1`,
		`orchestrator_tool_calls_total{ending="policy_denied",profile="team",runtime="fake",tool="system.bash"} 2`,
	}
	if len(got) != len(want) {
		t.Fatalf("metrics of tool calls = %d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i, line := range want {
		if !strings.HasPrefix(got[i], line) {
			t.Errorf("metric %d = %s, want %s", i, got[i], line)
		}
	}
}

func TestLeasesAndStagesAreCounted(t *testing.T) {
	t.Parallel()
	m := metrics.New(metrics.Options{Runtime: "fake"})
	s := newWorld(t).startOptions(t, func(o *Options) { o.Metrics = m })
	id := s.lease(t)
	if _, err := s.Exec(t.Context(), me, id, v1.Exec{Argv: []string{"true"}}, core.Stream{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), me, id); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(metricLines(t, m, "orchestrator_"), "\n")
	for _, want := range []string{
		`orchestrator_leases_total{start="`, `orchestrator_leases_ended_total{reason="removed",template="default"} 1`,
		`orchestrator_commands_total{ending="exited",runtime="fake"} 1`,
		`orchestrator_stage_duration_seconds_count{stage="queue"} 1`,
		`orchestrator_stage_duration_seconds_count{stage="bind"} 1`,
		`orchestrator_stage_duration_seconds_count{stage="lease"} 1`,
		`orchestrator_stage_duration_seconds_count{stage="exec"} 1`,
		`orchestrator_sandboxes{state="leased"} 0`,
		`orchestrator_pool_creations_total{template="default"} `,
		`orchestrator_store_write_seconds_count{operation="sandbox_insert"} `,
	} {
		if !strings.Contains(all, want) {
			t.Errorf("metrics lack %s:\n%s", want, all)
		}
	}
}
