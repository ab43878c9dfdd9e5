package egress

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/fake"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("database/sql.(*DB).connectionOpener"))
}

// startScheduler runs a scheduler with a fake runtime until the test ends.
func startScheduler(t *testing.T) *scheduler.Scheduler {
	t.Helper()
	st, err := store.Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	v, err := volumes.Open(filepath.Join(t.TempDir(), "workspaces"), volumes.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := scheduler.New(scheduler.Options{
		Driver: fake.New(fake.Options{Host: &fake.Host{}}), Store: st, Volumes: v,
		MaxSandboxes: 20, MaxMemory: 1 << 40, Queue: 100, Build: "b",
		Templates: []scheduler.Template{{
			Name: "default",
			Spec: runtime.Spec{Image: runtime.Image{ID: "sha256:1"}, Limits: runtime.Limits{}.WithDefaults()},
			Pool: pool.Settings{Min: 1, Max: 10, Rate: 1000, Parallel: 2, MaxAge: time.Hour},
		}},
	})
	if _, err := s.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		st.Close()
	})
	return s
}

// liveLeases implements Leases for tests that use no caller.
type liveLeases struct{ *scheduler.Scheduler }

func (l liveLeases) FindLease(ctx context.Context, p caller.Principal, id string) (*scheduler.Lease, error) {
	return l.Lease(ctx, p.Caller, id)
}

// Allow rules apply to the listed callers and profiles.
func TestCeilingIsPerCaller(t *testing.T) {
	x := New(Options{Config: &Config{Allow: []Allowance{
		{Rule: netpolicy.Rule{Host: "all.test"}},
		{Rule: netpolicy.Rule{Host: "ann.test"}, Callers: []string{"ann"}, Profiles: []string{"*"}},
		{Rule: netpolicy.Rule{Host: "write.test"}, Profiles: []string{"universal", "phase2"}},
		{Rule: netpolicy.Rule{Host: "both.test"}, Callers: []string{"bob"}, Profiles: []string{"universal"}},
		{Rule: netpolicy.Rule{Host: "all.test", Deny: true}, Callers: []string{"eve"}},
	}}})
	for _, c := range []struct {
		principal caller.Principal
		want      string
	}{
		{caller.Principal{Caller: "ann", Profile: "readonly"}, "all ann"},
		{caller.Principal{Caller: "ann", Profile: "phase2"}, "all ann write"},
		{caller.Principal{Caller: "bob", Profile: "universal"}, "all write both"},
		{caller.Principal{Caller: "bob", Profile: "readonly"}, "all"},
		{caller.Principal{Caller: "eve", Profile: "universal"}, "write"},
		{caller.Principal{Caller: "eve"}, ""},
	} {
		rules, err := x.ceiling(c.principal)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, name := range []string{"all", "ann", "write", "both"} {
			if rules.Decide(netpolicy.Want{Host: name + ".test", Port: 443, Tunnel: true}).Allowed {
				got = append(got, name)
			}
		}
		if again, err := x.ceiling(c.principal); err != nil || again != rules {
			t.Errorf("second ceiling(%+v) = %p, %v; want the first, %p", c.principal, again, err, rules)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%+v may reach %v, want %s", c.principal, got, c.want)
		}
	}
}

// A credential is for the listed callers and for operators.
func TestCredentialIsPerCaller(t *testing.T) {
	s := New(Options{Config: &Config{Secrets: []Credential{
		{Secret: netpolicy.Secret{Name: "api", Hosts: []string{"a.test"}}, Callers: []string{"ann"}},
	}}})
	for name, want := range map[string]bool{"ann": true, "bob": false} {
		if _, ok := s.credential(caller.Principal{Caller: name}, "api"); ok != want {
			t.Errorf("credential for %s exists: %t, want %t", name, ok, want)
		}
	}
	if _, ok := s.credential(caller.Local(""), "api"); !ok {
		t.Error("credential for an operator does not exist, want it")
	}
}

// Closing and reopening egress resets neither traffic nor record counts. Both are dropped with the
// lease.
func TestTrafficCountsAcrossEgressSessions(t *testing.T) {
	sched := startScheduler(t)
	s := New(Options{
		Config: &Config{}, Leases: liveLeases{sched}, MaxSandboxes: 20, Log: slog.New(slog.DiscardHandler),
	})
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	l, err := sched.Acquire(t.Context(), scheduler.Request{
		Caller: caller.LocalCaller, Template: "default", TTL: time.Hour, Idle: time.Hour,
		Mode: pool.Wait, Wait: time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	g, err := s.Grant(caller.Local(""), &v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}})
	if err != nil {
		t.Fatal(err)
	}
	s.ended[l.ID] = traffic{3, 4}
	var first *auditedSandbox
	for range 2 {
		s.serve(l, g, false)
		known := s.auditor.known[l.ID]
		if first == nil {
			first = known
		}
		if got := s.state(l.ID); got.Sent != 3 || got.Received != 4 || known != first {
			t.Errorf("state = %+v in %p; want 3 sent and 4 received in %p", got, known, first)
		}
		o, _ := s.find(l.ID)
		o.end()
	}
	s.serve(l, g, false)
	o, _ := s.find(l.ID)
	if err := sched.End(t.Context(), l, scheduler.Removed, true); err != nil {
		t.Fatal(err)
	}
	<-o.done
	if len(s.ended)+len(s.auditor.known) > 0 {
		t.Errorf("ended = %v, known = %v; want both empty", s.ended, s.auditor.known)
	}
}
