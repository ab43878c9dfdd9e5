package engine

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/workspaces"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

func TestStopEndsShellsFirst(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	id := s.lease(t)
	sh := s.startX(t, id)
	if list, err := s.Shells(t.Context(), me, id); err != nil || len(list) != 1 || list[0].State != "running" {
		t.Fatalf("Shells = %+v, %v; want one running", list, err)
	}
	if _, err := s.Stop(t.Context(), me, id, 2*time.Minute); !errdefs.IsInvalidArgument(err) {
		t.Fatalf("Stop with a grace of 2 minutes: %v, want InvalidArgument", err)
	}
	got, err := s.Stop(t.Context(), me, id, 10*time.Second)
	if err != nil || got.State != "gone" || got.Reason != scheduler.Stopped {
		t.Fatalf("Stop = %+v, %v; want state gone, reason %s", got, err, scheduler.Stopped)
	}
	if n := w.guest(id).running(); n != 0 {
		t.Errorf("%d shells still run, want 0", n)
	}
	end, err := s.Shell(t.Context(), me, sh.ID)
	if err != nil || end.State != "ended" || end.Result == nil || end.Result.Ending != "cancelled" {
		t.Errorf("Shell = %+v, %v; want state ended, ending cancelled", end, err)
	}
	if _, err := s.Stop(t.Context(), me, id, 0); err != nil {
		t.Errorf("second Stop: %v", err)
	}
}

func TestCallersCannotAccessOthersSandboxes(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	id := s.lease(t)
	sh := s.startX(t, id)
	you := caller.Principal{Caller: "you"}
	_, stop := s.Stop(t.Context(), you, id, 0)
	_, get := s.Sandbox(t.Context(), you, id)
	_, shells := s.Shells(t.Context(), you, id)
	_, shell := s.Shell(t.Context(), you, sh.ID)
	_, kill := s.KillShell(t.Context(), you, sh.ID, 0, true)
	_, exec := s.Exec(t.Context(), you, id, v1.Exec{Argv: []string{"true"}}, core.Stream{})
	_, _, read := s.ReadFile(t.Context(), you, id, wire.FileRequest{Path: "a"})
	for _, err := range []error{s.Remove(t.Context(), you, id), stop, get, shells, shell, kill, exec, read,
		s.SignalShell(t.Context(), you, sh.ID, 9)} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("access by another caller: %v, want NotFound", err)
		}
	}
	if list, err := s.Sandboxes(t.Context(), you, true); err != nil || len(list) != 0 {
		t.Errorf("Sandboxes of another caller = %v, %v; want none", list, err)
	}
}

func TestMillisecondsDoNotOverflow(t *testing.T) {
	s := newWorld(t).start(t)
	const wraps = 1<<63/1_000_000*2 + 2 // overflows to a few microseconds
	for _, r := range []v1.SandboxRequest{{TTLMS: wraps}, {IdleMS: wraps}, {WaitMS: wraps}} {
		if _, err := s.Lease(t.Context(), me, r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Lease(%+v): %v, want InvalidArgument", r, err)
		}
	}
}

// A caller that left during creation does not know its sandbox.
func TestLeaseOfDisconnectedCallerEnds(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	for _, key := range []string{"", "k"} {
		ctx, leave := context.WithCancel(t.Context())
		l, err := s.acquire(
			ctx,
			caller.Principal{Caller: caller.LocalCaller, Key: key},
			v1.SandboxRequest{},
			core.Acquisition{},
		)
		if err != nil {
			t.Fatal(err)
		}
		leave()
		_, err = s.describeNewLease(ctx, caller.Principal{Caller: caller.LocalCaller, Key: key}, l)
		if key != "" {
			if err != nil || l.Ended() != "" {
				t.Errorf("describeNewLease with a key: %v, ended %q; want no error and a live lease", err, l.Ended())
			}
			continue
		}
		if !errors.Is(err, context.Canceled) || l.Ended() != scheduler.Abandoned {
			t.Errorf("describeNewLease without a key: %v, ended %q; want %v, ended %q",
				err, l.Ended(), context.Canceled, scheduler.Abandoned)
		}
	}
}

// A shell whose start failed without a known end stays stored.
func TestShellWithUnknownFateStaysStored(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	id := s.lease(t)
	g := w.guest(id)
	g.refuses(func(op wire.Op) *wire.Failure {
		if op == wire.OpStart { // it runs, and the answer is lost
			g.refuses(func(op wire.Op) *wire.Failure { return &wire.Failure{Code: wire.Unavailable, Message: "later"} })
			g.mu.Lock()
			defer g.mu.Unlock()
			g.shells["left"] = wire.Shell{}
			return &wire.Failure{Code: wire.Unavailable, Message: "later"}
		}
		return nil
	})
	key := caller.Principal{Caller: caller.LocalCaller, Key: "k"}
	r := v1.ShellRequest{Exec: v1.Exec{Argv: []string{"x"}}}
	if _, err := s.StartShell(t.Context(), key, id, r); !errors.Is(err, idempotency.ErrMayHaveRun) {
		t.Fatalf("StartShell: %v, want %v", err, idempotency.ErrMayHaveRun)
	}
	g.refuses(nil)
	if rows, err := s.store.Shells(t.Context(), id); err != nil || len(rows) != 1 {
		t.Errorf("Shells in the store = %v, %v; want one", rows, err)
	}
	if _, err := s.StartShell(t.Context(), key, id, r); !errdefs.IsUnavailable(err) {
		t.Errorf("second StartShell with the key: %v, want Unavailable", err)
	}
	if n := g.running(); n != 1 {
		t.Errorf("%d commands run, want 1", n)
	}
}

// cut simulates a process that was killed during requests.
func (w *world) cut(t *testing.T, keys ...store.Key) {
	t.Helper()
	st := w.open(t)
	defer st.Close()
	for _, k := range keys {
		k.Caller = caller.LocalCaller
		if k.Created.IsZero() {
			k.Created = time.Now()
		}
		if _, fresh, err := st.BeginKey(t.Context(), k); err != nil || !fresh {
			t.Fatalf("BeginKey = fresh %t, %v; want a fresh key", fresh, err)
		}
	}
}

func sum(t *testing.T, v any) string {
	t.Helper()
	h, err := idempotency.Hash(v)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestRecoverKeysAfterCrash(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	id := s.lease(t)
	sh := s.startX(t, id)
	keyed, err := s.acquire(
		t.Context(),
		caller.Principal{Caller: caller.LocalCaller, Key: "lease"},
		v1.SandboxRequest{},
		core.Acquisition{},
	)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, err := s.volumes.Create(t.Context(), "made", volumes.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.stop()

	lease := v1.SandboxRequest{}
	shell := struct {
		Sandbox string
		v1.ShellRequest
	}{id, v1.ShellRequest{Exec: v1.Exec{Argv: []string{"x"}}}}
	run := v1.Run{Exec: v1.Exec{Argv: []string{"echo", "twice?"}}}
	made := v1.WorkspaceRequest{Name: "made"}
	w.cut(t,
		store.Key{Key: "lease", Op: opLease, Hash: sum(t, lease)},
		store.Key{Key: "nothing", Op: opLease, Hash: sum(t, lease)},
		store.Key{Key: "shell", Op: opShell, Hash: sum(t, shell), Ref: sh.ID},
		store.Key{Key: "no shell", Op: opShell, Hash: sum(t, shell), Ref: "never"},
		store.Key{Key: "run", Op: opRun, Hash: sum(t, run), Ref: "ref"},
		store.Key{Key: "made", Op: workspaces.OpWorkspace, Hash: sum(t, made), Ref: "made", Created: began},
		store.Key{Key: "other's", Op: workspaces.OpWorkspace, Hash: sum(t, made), Ref: "made"},
	)
	s = w.start(t)
	under := func(key string) caller.Principal { return caller.Principal{Caller: caller.LocalCaller, Key: key} }
	if got, err := s.Lease(t.Context(), under("lease"), lease); err != nil || got.ID != keyed.ID {
		t.Errorf("Lease with the key of a made lease = %+v, %v; want %s", got, err, keyed.ID)
	}
	if got, err := s.Lease(t.Context(), under("nothing"), lease); err != nil || got.ID == keyed.ID || got.ID == id {
		t.Errorf("Lease with the key of an unmade lease = %+v, %v; want a new one", got, err)
	}
	if got, err := s.StartShell(t.Context(), under("shell"), id, shell.ShellRequest); err != nil || got.ID != sh.ID {
		t.Errorf("StartShell with the key of a started shell = %+v, %v; want %s", got, err, sh.ID)
	}
	if got, err := s.StartShell(t.Context(), under("no shell"), id, shell.ShellRequest); err != nil || got.ID == sh.ID {
		t.Errorf("StartShell with the key of an unstarted shell = %+v, %v; want a new one", got, err)
	}
	if got, err := s.Run(t.Context(), under("run"), run, core.Stream{}); err != nil ||
		got.Ending != string(runtime.SandboxLost) {
		t.Errorf("Run with the key = %+v, %v; want ending %s", got, err, runtime.SandboxLost)
	}
	if got, err := s.Workspaces.Create(t.Context(), under("made"), made); err != nil || got.Name != "made" {
		t.Errorf("Create with the key = %+v, %v; want workspace made", got, err)
	}
	if _, err := s.Workspaces.Create(t.Context(), under("other's"), made); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Create with the key of another workspace: %v, want AlreadyExists", err)
	}
}

// Killed between recording and claiming the lease: it was never handed out.
func TestRecoverKeysIgnoresAbandonedLease(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	eventually(t, "one is warm", func() bool { return s.Pools(t.Context(), boss)[0].Warm == 1 })
	s.stop()
	warm := w.host.IDs()[0]
	st := w.open(t)
	if _, err := st.Update(t.Context(), warm, func(b *store.Sandbox) error {
		b.State, b.Caller, b.Lease.Key = store.Leased, caller.LocalCaller, "k"
		b.Expires, b.Idle, b.Used = time.Now().Add(time.Hour), time.Hour, time.Now()
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	st.Close()
	w.cut(t, store.Key{Key: "k", Op: opLease, Hash: sum(t, v1.SandboxRequest{})})
	s = w.start(t)
	got, err := s.Lease(t.Context(), caller.Principal{Caller: caller.LocalCaller, Key: "k"}, v1.SandboxRequest{})
	if err != nil || got.ID == warm {
		t.Fatalf("Lease = %+v, %v; want another sandbox than %s", got, err, warm)
	}
}

// The sandbox of a killed run is unused.
func TestKilledRunLeavesNoSandbox(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	if _, err := s.acquire(t.Context(), me, v1.SandboxRequest{}, core.Acquisition{OneShot: true}); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s = w.start(t)
	eventually(t, "no lease is left", func() bool {
		list, err := s.Sandboxes(t.Context(), me, false)
		return err == nil && len(list) == 0
	})
}

func TestConcurrentRequestsWithSameKeyRunOnce(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	ids := make(chan string, 8)
	for range cap(ids) {
		go func() {
			got, err := s.Lease(
				context.Background(),
				caller.Principal{Caller: caller.LocalCaller, Key: "k"},
				v1.SandboxRequest{},
			)
			if err != nil {
				t.Error(err)
			}
			ids <- got.ID
		}()
	}
	first := <-ids
	for range cap(ids) - 1 {
		if id := <-ids; id != first {
			t.Errorf("Lease with the same key = %s, want %s", id, first)
		}
	}
}

func TestExecInEndingLeaseReportsReason(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	for reason, want := range map[string]runtime.Ending{
		scheduler.Removed: runtime.Cancelled, scheduler.Expired: runtime.Cancelled, scheduler.Lost: runtime.SandboxLost,
	} {
		id := s.lease(t)
		started := make(chan struct{})
		got := make(chan v1.ExecResult, 1)
		go func() {
			r, err := s.Exec(
				context.Background(),
				me,
				id,
				v1.Exec{Argv: []string{"sleep", "600"}},
				core.Stream{Started: func(string) { close(started) }},
			)
			if err != nil {
				t.Error(err)
			}
			got <- r
		}()
		select {
		case <-started:
		case r := <-got:
			t.Fatalf("%s: the command ended as %+v, want it to start first", reason, r)
		}
		if err := s.sched.End(t.Context(), s.sched.Live(id), reason, true); err != nil {
			t.Fatal(err)
		}
		detail := (&scheduler.EndedError{ID: id, Reason: reason}).Error()
		if reason == scheduler.Lost {
			detail = detailLost
		}
		if r := <-got; r.Ending != string(want) || r.Detail != detail {
			t.Errorf("%s: result = %+v, want ending %s with detail %q", reason, r, want, detail)
		}
	}
}

// Killed between storing a shell and starting it.
func TestUnstartedShellIsNotRunning(t *testing.T) {
	w := newWorld(t)
	s := w.start(t)
	id := s.lease(t)
	sh := s.startX(t, id)
	s.stop()
	st := w.open(t)
	if err := st.InsertShell(t.Context(), store.Shell{ID: "never", Sandbox: id, Caller: caller.LocalCaller, Started: time.Now()}); err != nil {
		t.Fatal(err)
	}
	st.Close()
	s = w.start(t)
	list, err := s.Shells(t.Context(), me, id)
	if err != nil || len(list) != 2 || list[0].ID != sh.ID || list[0].State != "running" || list[1].Result == nil ||
		list[1].Result.Ending != "sandbox_lost" {
		t.Fatalf("Shells = %+v, %v; want %s running and one sandbox_lost", list, err, sh.ID)
	}
}
