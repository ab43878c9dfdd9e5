package metrics

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func read(tb testing.TB, m *Metrics, accept string) (body, form string) {
	tb.Helper()
	r := httptest.NewRequestWithContext(tb.Context(), http.MethodGet, "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	if w.Code != http.StatusOK {
		tb.Fatalf("GET /metrics = %d %s, want 200", w.Code, w.Body)
	}
	return w.Body.String(), w.Header().Get("Content-Type")
}

func assertLines(tb testing.TB, text string, want ...string) {
	tb.Helper()
	for _, line := range want {
		if !strings.Contains(text, "\n"+line+"\n") {
			tb.Errorf("metrics lack the line %q", line)
		}
	}
}

func TestEventsAreCounted(t *testing.T) {
	t.Parallel()
	m := New(Options{Version: "1", Build: "b", Runtime: "oci", Callers: []string{"ann"}})
	for _, c := range []ToolCall{
		{Tool: "system.bash", Profile: "default", Caller: "ann", Ending: "exited"},
		{Tool: "system.bash", Profile: "default", Caller: "trent", Ending: "exited"},
		{Tool: Unknown, Profile: Unknown, Caller: "mallory", Ending: "policy_denied", Class: "rule"},
		{Tool: Unknown, Profile: Unknown, Caller: "mallory", Ending: "approval_denied"},
	} {
		m.ToolCall(c)
	}
	m.Command(runtime.Exited)
	m.Command(runtime.OOM)
	m.Lease("default", true)
	m.Lease("default", false)
	m.LeaseEnded("default", "idle", []string{"idle"})
	m.LeaseEnded("default", "probe: /host/path", []string{"idle"})
	m.Verdict("default", "deny")
	m.ApprovalDecided("approved")
	m.Connection(true, 3, 5)
	m.Connection(false, 0, 0)
	text, _ := read(t, m, "")
	assertLines(t, text,
		`orchestrator_tool_calls_total{ending="exited",profile="default",runtime="oci",tool="system.bash"} 2`,
		`orchestrator_tool_calls_total{ending="policy_denied",profile="unknown",runtime="oci",tool="unknown"} 1`,
		`orchestrator_caller_tool_calls_total{caller="ann",ending="exited"} 1`,
		`orchestrator_caller_tool_calls_total{caller="other",ending="exited"} 1`,
		`orchestrator_tool_call_refusals_total{class="rule"} 1`,
		`orchestrator_tool_call_refusals_total{class="other"} 1`,
		`orchestrator_commands_total{ending="oom",runtime="oci"} 1`,
		`orchestrator_command_kills_total{reason="oom"} 1`,
		`orchestrator_command_kills_total{reason="timeout"} 0`,
		`orchestrator_leases_total{start="cold",template="default"} 1`,
		`orchestrator_leases_ended_total{reason="idle",template="default"} 1`,
		`orchestrator_leases_ended_total{reason="other",template="default"} 1`,
		`orchestrator_policy_verdicts_total{profile="default",verdict="deny"} 1`,
		`orchestrator_approval_requests_decided_total{state="approved"} 1`,
		`orchestrator_egress_connections_total{decision="allow"} 1`,
		`orchestrator_egress_connections_total{decision="deny"} 1`,
		`orchestrator_egress_bytes_total{direction="received"} 5`,
	)
	for _, secret := range []string{"mallory", "trent", "/host"} {
		if strings.Contains(text, secret) {
			t.Errorf("metrics contain %q, want no text that callers or the host choose", secret)
		}
	}
}

func TestCallersAreNotCountedUnlessConfigured(t *testing.T) {
	t.Parallel()
	m := New(Options{})
	m.ToolCall(ToolCall{Tool: "a", Profile: "p", Caller: "ann", Ending: "ok"})
	if text, _ := read(t, m, ""); strings.Contains(text, "caller_tool_calls") {
		t.Error("metrics have calls of callers without metrics.callers, want none")
	}
}

func TestStagesAreMeasured(t *testing.T) {
	t.Parallel()
	m := New(Options{})
	for _, err := range []error{nil, errors.New("failed")} {
		_, end := m.Begin(t.Context(), stage.Exec)
		end(err)
	}
	m.StoreWrite("audit_append", 3*time.Millisecond)
	m.RoundTrip(time.Millisecond)
	text, _ := read(t, m, "")
	assertLines(t, text,
		`orchestrator_stage_duration_seconds_count{stage="exec"} 2`,
		`orchestrator_stage_duration_seconds_count{stage="approval"} 0`,
		`orchestrator_store_write_seconds_bucket{operation="audit_append",le="0.0025"} 0`,
		`orchestrator_store_write_seconds_bucket{operation="audit_append",le="0.005"} 1`,
		`orchestrator_guest_round_trip_seconds_count 1`,
	)
}

func TestFiguresAreReadAtEachRequestAndSpaceSeldom(t *testing.T) {
	t.Parallel()
	m := New(Options{})
	warm, spaceReads := 1, 0
	m.Watch(func(context.Context) (Figures, error) {
		warm++
		return Figures{
			Pools:     []Pool{{Template: "default", Warm: warm, Created: 7, Max: 9}},
			Sandboxes: map[string]int{"leased": 4}, Approvals: &Approvals{Pending: 2, Oldest: time.Minute},
			Audit: &Audit{Queued: 1, Head: 12}, StoreWaits: 5, StoreWaited: time.Second, EgressOpen: 6,
		}, nil
	}, func() Space { spaceReads++; return Space{Images: 2, ImageBytes: 100} })
	read(t, m, "")
	text, _ := read(t, m, "")
	assertLines(t, text,
		`orchestrator_pool_sandboxes{state="warm",template="default"} 3`,
		`orchestrator_pool_creations_total{template="default"} 7`,
		`orchestrator_pool_limit_sandboxes{bound="max",template="default"} 9`,
		`orchestrator_sandboxes{state="leased"} 4`,
		`orchestrator_approval_requests_pending 2`,
		`orchestrator_approval_oldest_pending_seconds 60`,
		`orchestrator_audit_queued_records 1`,
		`orchestrator_audit_head_records 12`,
		`orchestrator_store_connection_wait_seconds_total 1`,
		`orchestrator_egress_open_connections 6`,
		`orchestrator_image_bytes 100`,
	)
	if spaceReads != 1 {
		t.Errorf("two requests read the space %d times, want 1", spaceReads)
	}
}

func TestOtherMetricsAreServedWhenFiguresFail(t *testing.T) {
	t.Parallel()
	m := New(Options{Version: "1", Build: "b"})
	m.Watch(func(context.Context) (Figures, error) { return Figures{}, errors.New("disk I/O error") },
		func() Space { return Space{} })
	text, _ := read(t, m, "")
	if !strings.Contains(text, "orchestrator_build_info{") || strings.Contains(text, "orchestrator_sandboxes") {
		t.Error("metrics while the database fails: want build_info, and no sandboxes")
	}
}

func TestFormatIsNegotiated(t *testing.T) {
	t.Parallel()
	m := New(Options{})
	for accept, want := range map[string]string{
		"": "text/plain", "application/openmetrics-text;version=1.0.0": "application/openmetrics-text",
	} {
		text, form := read(t, m, accept)
		if ended := strings.HasSuffix(text, "# EOF\n"); !strings.HasPrefix(form, want) || ended != (accept != "") {
			t.Errorf("Accept %q = %s, ends with # EOF %v; want %s", accept, form, ended, want)
		}
	}
}

func TestNilMetricsDoNothing(t *testing.T) {
	t.Parallel()
	var m *Metrics
	m.ToolCall(ToolCall{})
	m.Command(runtime.Exited)
	m.Lease("", true)
	m.LeaseEnded("", "", nil)
	m.Verdict("", "")
	m.ApprovalDecided("")
	m.Connection(true, 1, 1)
	m.StoreWrite("", 0)
	m.RoundTrip(0)
	m.Watch(nil, nil)
	if ctx, end := m.Begin(t.Context(), stage.Exec); ctx != t.Context() {
		t.Error("Begin of nil metrics changed the context")
	} else {
		end(nil)
	}
}
