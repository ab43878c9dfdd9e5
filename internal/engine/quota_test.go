package engine

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// poor is a caller with a quota of one call.
var poor = caller.Principal{Caller: "poor", Profile: "team", Trust: 3, Quotas: v1.Quotas{Calls: 1}}

// recordedOf returns the audit records of a caller.
func (s *service) recordedOf(t *testing.T, name string) []v1.AuditRecord {
	t.Helper()
	got, err := s.Governed.Audit(t.Context(), caller.Local(""), governed.AuditFilter{Caller: name})
	if err != nil {
		t.Fatal(err)
	}
	return got.Items
}

func TestQuotaRefusalsAreCountedWithoutInput(t *testing.T) {
	w := newWorld(t)
	s := w.governed(t)
	s.call(t, poor, "system.bash", bash("true"))
	r := bash("echo " + strings.Repeat("x", 10<<10))
	for range 50 {
		got := s.call(t, poor, "system.bash", r)
		if got.Ending != "policy_denied" || got.Verdict == nil || got.Verdict.Class != profile.ClassQuota ||
			got.Error == nil ||
			got.Error.RetryAfterMS <= 0 {
			t.Fatalf("call = %+v, want policy_denied of class %s with a time to retry", got, profile.ClassQuota)
		}
	}
	// Unknown names and invalid bodies are counted together.
	for _, name := range []string{"nothing", "nowhere", "never"} {
		_, err := s.Governed.CallTool(t.Context(), poor, name, r, governed.Watch{})
		if q, ok := errors.AsType[*caller.QuotaError](err); !ok || q.Quota != "calls" {
			t.Errorf("CallTool(%q): %v, want a quota error of calls", name, err)
		}
		if err := s.Governed.RefuseCall(t.Context(), poor, name, r.Input, governed.ErrUngoverned); !errors.Is(
			err,
			governed.ErrUngoverned,
		) {
			t.Errorf("RefuseCall(%q): %v, want %v", name, err, governed.ErrUngoverned)
		}
	}
	got := s.recordedOf(t, "poor")
	if len(got) != 4 || got[2].Kind != "refused" || got[2].Rule != "quota:calls" || got[2].Count != 1 ||
		got[2].InputBytes != len(r.Input) ||
		len(got[2].InputHash) != 64 ||
		got[3].Action != governed.UnknownTool {
		t.Fatalf("records = %+v, want 4: the third refused by quota:calls once with the hash of the input, "+
			"the fourth of %s", got, governed.UnknownTool)
	}
	s.stop()
	s.governance.Audit.Close()
	s = w.governed(t)
	var count int64
	for _, r := range s.recordedOf(t, "poor") {
		if count += r.Count; r.Kind == "refused" && (len(r.Input) > 0 || r.Verdict != "deny" || r.Profile != "team") {
			t.Errorf("record = %+v, want a denial of profile team without its input", r)
		}
	}
	if count != 56 {
		t.Errorf("%d refusals are recorded, want 56", count)
	}
}

func TestRateRefusalsAreCounted(t *testing.T) {
	s := newWorld(t).governed(t)
	in := v1.ToolCall{Input: json.RawMessage(`{"path": "."}`)}
	if _, err := s.Governed.CallTool(t.Context(), agent, "fs.list", in, governed.Watch{}); err == nil { // the fake guest has no files
		t.Fatal("CallTool(fs.list) succeeded, want an error")
	}
	for range 10 {
		if got := s.call(t, agent, "fs.list", in); got.Verdict == nil || got.Verdict.Class != profile.ClassRate {
			t.Fatalf("fs.list = %+v, want a denial of class %s", got, profile.ClassRate)
		}
	}
	if got := s.recordedOf(t, "agent"); len(got) != 3 || got[2].Kind != "refused" || got[2].Rule != "rate:fs.list" ||
		got[2].Action != "fs.list" {
		t.Errorf("records = %+v, want 3, the last one refused by rate:fs.list", got)
	}
}

// A quota refusal did nothing, so its key can be used again.
func TestQuotaRefusalReleasesKey(t *testing.T) {
	s := newWorld(t).governed(t)
	s.call(t, poor, "system.bash", bash("true"))
	keyed := poor
	keyed.Key = "k"
	if got := s.call(t, keyed, "system.bash", bash("true")); got.Ending != "policy_denied" {
		t.Fatalf("call beyond the quota = %+v, want policy_denied", got)
	}
	keyed.Quotas.Calls = 2
	first := s.call(t, keyed, "system.bash", bash("true"))
	if first.Ending != "exited" {
		t.Errorf("call with a larger quota = %+v, want ending exited", first)
	}
	if again := s.call(t, keyed, "system.bash", bash("true")); again.ID != first.ID {
		t.Errorf("second call with the key = %+v, want the recorded call %s", again, first.ID)
	}
}

func TestCallerOverAuditShareIsRefused(t *testing.T) {
	w := newWorld(t)
	s := w.governedWith(t, audit.Options{CallerDailyBytes: 3000}, nil)
	ran := 0
	var err error
	for ran < 100 {
		if _, err = s.Governed.CallTool(t.Context(), agent, "system.bash", bash("true"), governed.Watch{}); err != nil {
			break
		}
		ran++
	}
	q, ok := errors.AsType[*caller.QuotaError](err)
	if !ok || q.Quota != "audit_bytes" || q.Limit != 3000 || q.Used < 3000 || q.RetryAfter <= 0 ||
		!errdefs.IsResourceExhausted(err) ||
		core.ForCallers(err) == nil {
		t.Fatalf("after %d calls: %v, want audit_bytes quota error with limit 3000", ran, err)
	}
	for range 20 {
		if _, err := s.Governed.CallTool(t.Context(), agent, "system.bash", bash("true"), governed.Watch{}); !errdefs.IsResourceExhausted(
			err,
		) {
			t.Fatalf("CallTool beyond the quota: %v, want ResourceExhausted", err)
		}
		if err := s.Governed.RefuseCall(t.Context(), agent, "x", []byte(`{"a":"`+strings.Repeat("x", 10<<10)+`"}`),
			governed.ErrUngoverned); !errors.Is(
			err,
			governed.ErrUngoverned,
		) {
			t.Fatalf("RefuseCall: %v, want %v", err, governed.ErrUngoverned)
		}
	}
	calls, size := map[string]int{}, 0
	for _, r := range s.recordedOf(t, "agent") {
		calls[r.Kind]++
		size += len(r.Input)
	}
	if calls["open"] != ran || calls["close"] != ran || calls["refused"] > 2 || size > 3000 {
		t.Errorf("records = %v with %d bytes of input; want %d open and close, at most 2 refused and 3000 bytes",
			calls, size, ran)
	}
	operator := agent
	operator.Operator = true
	for name, c := range map[string]caller.Principal{"an operator of that name": operator,
		"the local operator": caller.Local(""), "another caller": {Caller: "other", Profile: "team", Trust: 3}} {
		if got := s.call(t, c, "system.bash", bash("true")); got.Ending != "exited" {
			t.Errorf("%s: call = %+v, want ending exited", name, got)
		}
	}
}

func TestDroppedAnswersReportReason(t *testing.T) {
	w := newWorld(t)
	s := w.startOptions(t, func(o *Options) { o.Keys = store.KeyBounds{Answers: 2, Bytes: 1 << 20, Keys: 10} })
	under := func(key string) caller.Principal { return caller.Principal{Caller: caller.LocalCaller, Key: key} }
	did := 0
	do := func(key, answer string) (string, error) {
		return idempotency.Do(
			t.Context(),
			s.idem,
			under(key),
			opRun,
			"ref",
			"request",
			func(context.Context) (string, error) { did++; return answer, nil },
			func(a string) string { return a },
		)
	}
	for _, key := range []string{"a", "b", "c"} {
		if got, err := do(key, "answer "+key); err != nil || got != "answer "+key {
			t.Fatalf("request with key %s = %q, %v; want its answer", key, got, err)
		}
	}
	if _, err := do("large", strings.Repeat("x", 2<<20)); err != nil {
		t.Fatal(err)
	}
	did = 0
	for key, want := range map[string]string{"a": "was evicted", "large": "too large to keep"} {
		if _, err := do(key, ""); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), want) ||
			core.ForCallers(err) == nil {
			t.Errorf("request with key %s: %v, want FailedPrecondition with %q", key, err, want)
		}
	}
	for _, key := range []string{"b", "c"} {
		if got, err := do(key, ""); err != nil || got != "answer "+key {
			t.Errorf("repeated request with key %s = %q, %v; want the stored answer", key, got, err)
		}
	}
	if did > 0 {
		t.Errorf("%d repeated requests ran again, want 0", did)
	}
}
