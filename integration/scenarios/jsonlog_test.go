//go:build integration

package scenarios

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestJSONLogHasNoPlainLines starts a service with a template that is not ready, calls it and stops
// it. Every line of its log must be a JSON object.
func TestJSONLogHasNoPlainLines(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Runtime: "oci", Seed: &seed, Config: onDemand + `
  broken:
    image: nowhere/at-all:1
`})
	s.With("--log-format", "json")
	s.Start()
	a := s.Ask(t, "GET", "/v1/sandboxes/nobody", "", "X-Request-Id", "scenario-1")
	if p := a.Problem(t, 404, "not_found", ""); p.RequestID != "scenario-1" || a.Header.Get("X-Request-Id") != p.RequestID {
		t.Errorf("request id = %q in the body and %q in the header, want scenario-1", p.RequestID, a.Header.Get("X-Request-Id"))
	}
	s.Term()
	found := false
	for line := range strings.Lines(s.Log()) {
		var record map[string]any
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Errorf("line %q of the log: %v, want JSON", line, err)
			continue
		}
		if took, ok := record["took"]; ok && record["request"] == "scenario-1" {
			found = true
			if text, ok := took.(string); !ok || !strings.HasSuffix(text, "s") {
				t.Errorf("took = %v, want a duration with its unit", took)
			}
		}
	}
	if !found {
		t.Errorf("no line of the log is about request scenario-1, want its duration")
	}
}
