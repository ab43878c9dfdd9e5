package engine

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/egress"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Egress without a gateway, over the ceiling or with another caller's secret is refused before a
// sandbox is used.
func TestInvalidEgressIsRefused(t *testing.T) {
	w := newWorld(t)
	none := w.start(t)
	r := v1.SandboxRequest{Egress: &v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}}}
	if _, err := none.Lease(t.Context(), caller.Local(""), r); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Lease without a gateway: %v, want FailedPrecondition", err)
	}
	none.stop()
	s := w.startOptions(t, func(o *Options) {
		o.Egress = &egress.Config{
			Secrets: []egress.Credential{
				{
					Secret:  netpolicy.Secret{Name: "api", Hosts: []string{"a.test"}, Header: "X-Key", Value: "value-of-it"},
					Callers: []string{"ann"},
				},
			},
		}
	})
	for _, c := range []struct {
		principal caller.Principal
		ask       v1.Egress
		is        func(error) bool
		field     string
	}{
		{caller.Principal{Caller: "ann"}, v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}}, errdefs.IsPermissionDenied, "egress"},
		{caller.Local(""), v1.Egress{Rules: []v1.EgressRule{{Host: "a.test", Paths: []string{"/"}}}},
			errdefs.IsInvalidArgument, "egress.rules[0].paths"},
		{caller.Local(""), v1.Egress{Secrets: []string{"api"}}, errdefs.IsInvalidArgument, "egress.rules"},
		{caller.Local(""), v1.Egress{Rules: []v1.EgressRule{{Host: "a.test"}}, Secrets: []string{"x"}}, errdefs.IsNotFound, "egress.secrets[0]"},
	} {
		_, err := s.Lease(t.Context(), c.principal, v1.SandboxRequest{Egress: &c.ask})
		if bad, ok := errors.AsType[*usererror.InvalidError](err); !ok || !c.is(err) || bad.Field != c.field {
			t.Errorf("Lease with egress %+v: %v, want an error for field %q", c.ask, err, c.field)
		}
	}
	if rows, err := s.store.Leases(t.Context(), caller.LocalCaller, true, 10); err != nil || len(rows) != 0 {
		t.Errorf("Leases = %v, %v; want none", rows, err)
	}
}

// A sandbox with a profile's network cannot be used by a token of the same caller whose profile has
// none, neither by id nor as a session.
func TestProfileNetworkIsLimitedToItsCalls(t *testing.T) {
	w := newWorld(t)
	if err := os.Mkdir(filepath.Join(w.dir, "profiles"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, "profiles", "wide.yaml"),
		[]byte("name: wide\nextends: default\nnetwork: bridge\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := w.governed(t)
	wide := caller.Principal{Caller: agent.Caller, Profile: "wide", Trust: 3}
	l, err := s.session(t.Context(), wide, "work", v1.SandboxRequest{}, core.Acquisition{Network: profile.NetworkBridge})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []caller.Principal{wide, {Caller: agent.Caller, Operator: true}} {
		if _, err := s.findLease(t.Context(), p, l.ID); err != nil {
			t.Errorf("findLease by %+v: %v, want no error", p, err)
		}
	}
	r := bash("true")
	r.Session = "work"
	_, bySession := s.Governed.CallTool(t.Context(), agent, "system.bash", r, governed.Watch{})
	r.Session, r.Sandbox = "", l.ID
	_, byID := s.Governed.CallTool(t.Context(), agent, "system.bash", r, governed.Watch{})
	_, byPort := s.Dial(t.Context(), agent, l.ID, 80)
	_, byExec := s.Exec(t.Context(), agent, l.ID, v1.Exec{Argv: []string{"true"}}, core.Stream{})
	for how, err := range map[string]error{"session": bySession, "id": byID, "port": byPort, "exec": byExec} {
		if !errdefs.IsPermissionDenied(err) {
			t.Errorf("access by %s: %v, want PermissionDenied", how, err)
		}
	}
}
