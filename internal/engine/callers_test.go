package engine

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/workspaces"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

var boss = caller.Local("")

func (s *service) token(t *testing.T, r v1.TokenRequest) v1.Token {
	t.Helper()
	got, err := s.Callers.CreateToken(t.Context(), boss, r)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func (s *service) as(t *testing.T, r v1.TokenRequest) caller.Principal {
	t.Helper()
	p, err := s.Callers.Identify(t.Context(), s.token(t, r).Secret)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestIdentifyReturnsCallerOfToken(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	r := v1.TokenRequest{Caller: "ann", Profile: "p", Trust: 2, Quotas: v1.Quotas{Sandboxes: 1}, Note: "n"}
	tok := s.token(t, r)
	if !strings.HasPrefix(tok.Secret, "orc_"+tok.ID+"_") || len(tok.Secret) != len("orc__")+len(tok.ID)+43 {
		t.Fatalf("secret = %q, want orc_%s_ and 43 characters", tok.Secret, tok.ID)
	}
	want := caller.Principal{Caller: "ann", Token: tok.ID, Profile: "p", Trust: 2, Quotas: r.Quotas}
	check := func(s *service) {
		t.Helper()
		if got, err := s.Callers.Identify(t.Context(), tok.Secret); err != nil || got != want {
			t.Fatalf("Identify = %+v, %v; want %+v and no error", got, err, want)
		}
	}
	check(s)
	list, err := s.Callers.Tokens(t.Context(), boss)
	if err != nil || len(list) != 1 || list[0].Secret != "" || list[0].LastUseAt == nil {
		t.Fatalf("Tokens = %+v, %v; want one without its secret and with a last use", list, err)
	}
	used := *list[0].LastUseAt
	s.stop()
	s = w.start(t)
	if list, err = s.Callers.Tokens(t.Context(), boss); err != nil || len(list) != 1 || list[0].LastUseAt == nil ||
		!list[0].LastUseAt.Equal(used) {
		t.Fatalf("Tokens after a restart = %+v, %v; want one last used at %v", list, err, used)
	}
	check(s)
}

func TestTokenSecretIsNotStored(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	key := boss
	key.Key = "k"
	tok, err := s.Callers.CreateToken(t.Context(), key, v1.TokenRequest{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	s.stop()
	secret := []byte(tok.Secret[len(caller.TokenPrefix)+len(tok.ID)+1:])
	files, err := filepath.Glob(filepath.Join(w.dir, "state.db*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("state files = %v, %v; want at least one", files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, secret) {
			t.Errorf("%s contains the secret, want only its hash", f)
		}
	}
}

// All refusals have the same error, so that none reveals anything.
func TestIdentifyRejectsBadTokensWithOneError(t *testing.T) {
	s := newWorld(t).start(t)
	good, revoked, expired := s.token(
		t,
		v1.TokenRequest{Caller: "a"},
	), s.token(
		t,
		v1.TokenRequest{Caller: "a"},
	), s.token(
		t,
		v1.TokenRequest{Caller: "a", TTLMS: 1000},
	)
	if _, err := s.Callers.Identify(t.Context(), revoked.Secret); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := s.Callers.RevokeToken(t.Context(), boss, revoked.ID); err != nil || got.RevokedAt == nil ||
			got.Secret != "" {
			t.Fatalf("RevokeToken = %+v, %v; want a revoked token without its secret", got, err)
		}
	}
	now := time.Now()
	s.Callers.Now = func() time.Time { return now.Add(time.Minute) }
	flipped := []byte(good.Secret)
	flipped[len(flipped)-3] ^= 1
	for name, token := range map[string]string{
		"revoked": revoked.Secret, "expired": expired.Secret, "another secret": string(flipped),
		"of another id": "orc_0123456789abcdef" + good.Secret[20:],
		"short":         good.Secret[:len(good.Secret)-1], "long": good.Secret + "a", "empty": "", "prefix": "orc_",
		"id": "orc_" + good.ID, "id and nothing": "orc_" + good.ID + "_",
		"NUL": good.Secret + "\x00", "huge": strings.Repeat("orc_", 1<<18),
	} {
		if got, err := s.Callers.Identify(t.Context(), token); !errors.Is(err, caller.ErrToken) ||
			err.Error() != caller.ErrToken.Error() ||
			got != (caller.Principal{}) {
			t.Errorf("Identify of %s = %+v, %v; want no principal and %v", name, got, err, caller.ErrToken)
		}
	}
	if _, err := s.Callers.Identify(t.Context(), good.Secret); err != nil {
		t.Error(err)
	}
	if _, err := s.Callers.RevokeToken(t.Context(), boss, "none"); !errdefs.IsNotFound(err) {
		t.Errorf("RevokeToken of an unknown id: %v, want NotFound", err)
	}
}

func TestBadTokenRequestsNameTheField(t *testing.T) {
	s := newWorld(t).startOptions(t, func(o *Options) {
		o.CheckProfile = func(name string) error {
			if name == "known" {
				return nil
			}
			return usererror.Invalid("profile", "%q is not known", name)
		}
	})
	for _, c := range []struct {
		field string
		r     v1.TokenRequest
	}{
		{"caller", v1.TokenRequest{}},
		{"caller", v1.TokenRequest{Caller: "local"}},
		{"caller", v1.TokenRequest{Caller: "Ann"}},
		{"caller", v1.TokenRequest{Caller: "../x"}},
		{"caller", v1.TokenRequest{Caller: "a\x00b"}},
		{"caller", v1.TokenRequest{Caller: strings.Repeat("a", 64)}},
		{"trust", v1.TokenRequest{Caller: "a", Trust: 4}},
		{"trust", v1.TokenRequest{Caller: "a", Trust: -1}},
		{"quotas.sandboxes", v1.TokenRequest{Caller: "a", Quotas: v1.Quotas{Sandboxes: -1}}},
		{"quotas.memory_bytes", v1.TokenRequest{Caller: "a", Quotas: v1.Quotas{MemoryBytes: -1}}},
		{"quotas.calls", v1.TokenRequest{Caller: "a", Quotas: v1.Quotas{Calls: -1}}},
		{"ttl_ms", v1.TokenRequest{Caller: "a", TTLMS: -1}},
		{"ttl_ms", v1.TokenRequest{Caller: "a", TTLMS: 1 << 62}},
		{"note", v1.TokenRequest{Caller: "a", Note: strings.Repeat("n", 1025)}},
		{"note", v1.TokenRequest{Caller: "a", Note: "\xff"}},
		{"profile", v1.TokenRequest{Caller: "a", Profile: "other"}},
	} {
		_, err := s.Callers.CreateToken(t.Context(), boss, c.r)
		if e, ok := errors.AsType[*usererror.InvalidError](err); !ok || e.Field != c.field ||
			!errdefs.IsInvalidArgument(err) {
			t.Errorf("CreateToken(%+v): %v, want InvalidArgument for field %q", c.r, err, c.field)
		}
	}
	if _, err := s.Callers.CreateToken(t.Context(), boss, v1.TokenRequest{Caller: "a", Profile: "known"}); err != nil {
		t.Error(err)
	}
}

func TestTokensRequireOperator(t *testing.T) {
	s := newWorld(t).start(t)
	ann := s.as(t, v1.TokenRequest{Caller: "ann", Trust: 3})
	_, create := s.Callers.CreateToken(t.Context(), ann, v1.TokenRequest{Caller: "ann"})
	_, list := s.Callers.Tokens(t.Context(), ann)
	_, revoke := s.Callers.RevokeToken(t.Context(), ann, ann.Token)
	for _, err := range []error{create, list, revoke} {
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "only operators may") {
			t.Errorf("access by a token: %v, want PermissionDenied", err)
		}
	}
	ops := s.as(t, v1.TokenRequest{Caller: "ops", Operator: true})
	if _, err := s.Callers.RevokeToken(t.Context(), ops, ann.Token); err != nil {
		t.Error(err)
	}
}

// createOwn creates workspace w, whose file "who" has the caller's name, for each of the callers.
func createOwn(t *testing.T, s *service, callers []caller.Principal) {
	t.Helper()
	for _, p := range callers { // the same name denotes separate workspaces
		made, err := s.Workspaces.Create(t.Context(), p, v1.WorkspaceRequest{Name: "w"})
		if err != nil || made.Name != "w" {
			t.Fatalf("Create by %q = %+v, %v; want workspace w", p.Caller, made, err)
		}
		if _, err := s.Workspaces.Create(t.Context(), p, v1.WorkspaceRequest{Name: "w"}); !errdefs.IsAlreadyExists(err) ||
			strings.Contains(err.Error(), workspaces.OwnedPrefix) {
			t.Fatalf("second Create by %q: %v, want AlreadyExists without the name on disk", p.Caller, err)
		}
		body := strings.NewReader(p.Caller)
		if _, err := s.Workspaces.WriteFile(t.Context(), p, "w", wire.FileRequest{Path: "who", Mode: 0o644,
			Size: int64(body.Len())}, body); err != nil {
			t.Fatal(err)
		}
	}
}

// checkOwn reports an error if a caller has workspaces other than the one of createOwn.
func checkOwn(t *testing.T, s *service, callers []caller.Principal) {
	t.Helper()
	for _, p := range callers {
		list, err := s.Workspaces.List(t.Context(), p)
		if err != nil || len(list) != 1 || list[0].Name != "w" {
			t.Fatalf("List by %q = %+v, %v; want only w", p.Caller, list, err)
		}
		r, _, err := s.Workspaces.ReadFile(t.Context(), p, "w", wire.FileRequest{Path: "who"})
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		_, err = got.ReadFrom(r)
		r.Close()
		if err != nil || got.String() != p.Caller {
			t.Errorf("file of %q = %q, %v; want %q", p.Caller, got.String(), err, p.Caller)
		}
	}
}

func TestWorkspacesAreSeparatePerCaller(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	ann, bob := s.as(t, v1.TokenRequest{Caller: "ann"}), s.as(t, v1.TokenRequest{Caller: "bob"})
	everybody := []caller.Principal{boss, ann, bob}
	createOwn(t, s, everybody)
	checkOwn(t, s, everybody)
	s.stop()
	s = w.start(t)
	checkOwn(t, s, everybody)
	if err := s.Workspaces.Delete(t.Context(), ann, "w"); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Workspaces.List(t.Context(), ann); err != nil || len(list) != 0 {
		t.Errorf("List after Delete = %v, %v; want none", list, err)
	}
	if _, err := s.Workspaces.Get(t.Context(), bob, "w"); err != nil {
		t.Errorf("Get by another caller: %v, want no error", err)
	}
}

func TestNameOnDiskGivesNoAccess(t *testing.T) {
	s := newWorld(t).start(t)
	ann, bob := s.as(t, v1.TokenRequest{Caller: "ann"}), s.as(t, v1.TokenRequest{Caller: "bob"})
	everybody := []caller.Principal{boss, ann, bob}
	createOwn(t, s, everybody)
	disk := workspaces.DiskName("ann", "w")
	for _, p := range everybody {
		if _, err := s.Workspaces.Get(t.Context(), p, disk); !errdefs.IsNotFound(err) {
			t.Errorf("Get(%q) by %q: %v, want NotFound", disk, p.Caller, err)
		}
		if err := s.Workspaces.Delete(t.Context(), p, disk); !errdefs.IsNotFound(err) {
			t.Errorf("Delete(%q) by %q: %v, want NotFound", disk, p.Caller, err)
		}
	}
	if _, err := s.Workspaces.Create(t.Context(), boss, v1.WorkspaceRequest{Name: disk}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Create(%q): %v, want InvalidArgument", disk, err)
	}
	if _, err := s.Lease(t.Context(), boss, v1.SandboxRequest{Workspace: disk}); !errdefs.IsNotFound(err) {
		t.Errorf("Lease with workspace %q: %v, want NotFound", disk, err)
	}
}

func TestSecondWriterErrorNamesWayOut(t *testing.T) {
	s := newWorld(t).start(t)
	ann := s.as(t, v1.TokenRequest{Caller: "ann"})
	for _, p := range []caller.Principal{boss, ann} {
		if _, err := s.Workspaces.Create(t.Context(), p, v1.WorkspaceRequest{Name: "w"}); err != nil {
			t.Fatal(err)
		}
		first, err := s.Lease(t.Context(), p, v1.SandboxRequest{Workspace: "w"})
		if err != nil || first.Workspace != "w" {
			t.Fatalf("Lease by %q = %+v, %v; want one with workspace w", p.Caller, first, err)
		}
		_, err = s.Lease(t.Context(), p, v1.SandboxRequest{Workspace: "w"})
		e, ok := errors.AsType[*usererror.InvalidError](err)
		if !ok || e.Field != "workspace" || !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), first.ID) ||
			!strings.Contains(err.Error(), "read_only") {
			t.Errorf("second Lease by %q: %v, want Unavailable that names %s and read_only", p.Caller, err, first.ID)
		}
		if _, err := s.Lease(t.Context(), p, v1.SandboxRequest{Workspace: "w", ReadOnly: true}); err != nil {
			t.Error(err)
		}
		if err := s.Workspaces.Delete(t.Context(), p, "w"); !errdefs.IsFailedPrecondition(err) ||
			strings.Contains(err.Error(), workspaces.OwnedPrefix) {
			t.Errorf("Delete by %q of a leased workspace: %v, want FailedPrecondition without the name on disk",
				p.Caller, err)
		}
		if list, err := s.Workspaces.List(t.Context(), p); err != nil || len(list) != 1 || len(list[0].Sandboxes) != 2 {
			t.Errorf("List by %q = %+v, %v; want one workspace with two sandboxes", p.Caller, list, err)
		}
	}
}

func TestQuotasHoldUnderConcurrency(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	ann := s.as(t, v1.TokenRequest{Caller: "ann", Quotas: v1.Quotas{Sandboxes: 3}})
	var mu sync.Mutex
	var got []string
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			l, err := s.Lease(t.Context(), ann, v1.SandboxRequest{})
			mu.Lock()
			defer mu.Unlock()
			if q, ok := errors.AsType[*caller.QuotaError](err); ok && q.Quota == "sandboxes" && q.Limit == 3 && q.Used == 3 &&
				errdefs.IsResourceExhausted(err) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			got = append(got, l.ID)
		})
	}
	group.Wait()
	if len(got) != 3 {
		t.Fatalf("%d leases succeeded, want 3", len(got))
	}
	s.lease(t) // other callers have their own quota
	s.stop()
	s = w.start(t)
	if _, err := s.Lease(t.Context(), ann, v1.SandboxRequest{}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("Lease after a restart: %v, want ResourceExhausted", err)
	}
	if err := s.Remove(t.Context(), ann, got[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Lease(t.Context(), ann, v1.SandboxRequest{}); err != nil {
		t.Errorf("Lease after Remove: %v, want no error", err)
	}
}

// Sequential commands use one sandbox at a time.
func TestSequentialRunsFitQuotaOfOne(t *testing.T) {
	s := newWorld(t).start(t)
	ann := s.as(t, v1.TokenRequest{Caller: "ann", Quotas: v1.Quotas{Sandboxes: 1}})
	for range 5 {
		if _, err := s.Run(t.Context(), ann, v1.Run{Exec: v1.Exec{Argv: []string{"true"}}}, core.Stream{}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMemoryQuotaIsEnforced(t *testing.T) {
	s := newWorld(t).start(t)
	template, _ := s.sched.Template("default")
	one := template.Spec.Limits.MemoryBytes
	ann := s.as(t, v1.TokenRequest{Caller: "ann", Quotas: v1.Quotas{MemoryBytes: 2*one - 1}})
	if _, err := s.Lease(t.Context(), ann, v1.SandboxRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Lease(t.Context(), ann, v1.SandboxRequest{})
	if q, ok := errors.AsType[*caller.QuotaError](err); !ok || q.Quota != "memory_bytes" || q.Limit != 2*one-1 ||
		q.Used != one {
		t.Fatalf("Lease: %v, want memory_bytes quota error with limit %d and %d used", err, 2*one-1, one)
	}
}

func TestDefaultQuotasApplyToTokens(t *testing.T) {
	s := newWorld(t).start(t)
	s.Callers.Defaults = caller.Quotas{Sandboxes: 1, Calls: 1}
	for _, c := range []struct {
		principal caller.Principal
		more      bool
	}{
		{boss, true},
		{s.as(t, v1.TokenRequest{Caller: "ops", Operator: true}), true},
		{s.as(t, v1.TokenRequest{Caller: "ann"}), false},
		{s.as(t, v1.TokenRequest{Caller: "bob", Quotas: v1.Quotas{Sandboxes: 2, Calls: 2}}), true},
	} {
		for i := range 2 {
			_, lease := s.Lease(t.Context(), c.principal, v1.SandboxRequest{})
			count := s.Callers.CountCall(c.principal)
			for _, err := range []error{lease, count} {
				if want := i == 0 || c.more; (err == nil) != want {
					t.Errorf("number %d of %s: %v, want success %v", i, c.principal.Caller, err, want)
				}
			}
		}
	}
}

func TestCallQuotaResetsAtMidnight(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	ann := s.as(t, v1.TokenRequest{Caller: "ann", Quotas: v1.Quotas{Calls: 100}})
	evening := time.Now().UTC().Truncate(24 * time.Hour).Add(23 * time.Hour)
	s.Callers.Now = func() time.Time { return evening }
	var group sync.WaitGroup
	refused := make(chan error, 200)
	for range 130 {
		group.Go(func() {
			if err := s.Callers.CountCall(ann); err != nil {
				refused <- err
			}
		})
	}
	group.Wait()
	if len(refused) != 30 {
		t.Fatalf("%d of 130 calls refused, want 30", len(refused))
	}
	q, ok := errors.AsType[*caller.QuotaError](<-refused)
	if !ok || q.Quota != "calls" || q.Limit != 100 || q.Used != 100 || q.RetryAfter != time.Hour ||
		!errdefs.IsResourceExhausted(q) {
		t.Fatalf("refusal = %+v, want quota calls, limit 100, 100 used, retry after %v", q, time.Hour)
	}
	s.stop()
	s = w.start(t)
	if err := s.Callers.LoadCounts(t.Context()); err != nil { // the clock of the test differs from the host's
		t.Fatal(err)
	}
	s.Callers.Now = func() time.Time { return evening }
	if err := s.Callers.CountCall(ann); !errdefs.IsResourceExhausted(err) {
		t.Errorf("CountCall after a restart: %v, want ResourceExhausted", err)
	}
	s.Callers.Now = func() time.Time { return evening.Add(time.Hour) }
	if err := s.Callers.CountCall(ann); err != nil {
		t.Errorf("CountCall on the next day: %v, want no error", err)
	}
	s.Callers.Now = func() time.Time { return evening }
	for i := range 100 { // a clock that is set back does not reset the count
		if err := s.Callers.CountCall(ann); (err == nil) != (i < 99) {
			t.Fatalf("CountCall number %d: %v, want an error only for the last", i, err)
		}
	}
}

func TestWaitingCallsPerCallerAreBounded(t *testing.T) {
	s := newWorld(t).start(t)
	s.Callers.Defaults = caller.Quotas{Waiting: 1}
	ann := s.as(t, v1.TokenRequest{Caller: "ann"})
	if got := s.Callers.SandboxQuotas(ann).Waiting; got != 1 {
		t.Errorf("Waiting = %d, want the default of 1", got)
	}
	if got := s.Callers.SandboxQuotas(boss).Waiting; got != 0 {
		t.Errorf("Waiting of the local caller = %d, want 0", got)
	}
}
