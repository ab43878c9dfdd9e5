package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func open(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func row(id string) Sandbox {
	return Sandbox{ID: id, State: Creating, Template: "default", Runtime: "oci", Image: "sha256:1", Build: "b",
		Memory: 7, Created: time.Unix(5, 0).UTC()}
}

func TestOwnerAndRowsSurviveReopening(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	owner := s.Owner()
	if !runtime.ValidID(owner) {
		t.Fatalf("owner = %q, want a valid name of a container", owner)
	}
	want := row("aaaaaaaa")
	if err := s.Insert(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	want.State, want.Caller, want.Lease = Leased, "me", Lease{Workspace: "w", Labels: map[string]string{"a": "b"}}
	want.Expires, want.Idle = time.Unix(9, 0).UTC(), time.Minute
	if _, err := s.Update(t.Context(), want.ID, func(b *Sandbox) error { *b = want; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if s.Owner() != owner {
		t.Fatalf("owner after reopening = %s, want %s", s.Owner(), owner)
	}
	got, err := s.Live(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Sandbox{want}, got); d != "" {
		t.Fatalf("Live (-want +got):\n%s", d)
	}
}

func TestInvalidTransitionsAreRefused(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.Insert(t.Context(), row("aaaaaaaa")); err != nil {
		t.Fatal(err)
	}
	set := func(to State) error {
		_, err := s.Update(t.Context(), "aaaaaaaa", func(b *Sandbox) error { b.State = to; return nil })
		return err
	}
	for _, to := range []State{Warm, Leased, Stopping, Gone} {
		if err := set(to); err != nil {
			t.Fatalf("Update to %s: %v", to, err)
		}
	}
	for _, to := range []State{Creating, Warm, Leased, Stopping} {
		if err := set(to); !errors.Is(err, errdefs.ErrFailedPrecondition) {
			t.Fatalf("Update from gone to %s: %v, want FailedPrecondition", to, err)
		}
	}
	if _, err := s.Sandbox(t.Context(), "nothing1"); !errors.Is(err, errdefs.ErrNotFound) {
		t.Fatalf("Sandbox of an unknown id: %v, want NotFound", err)
	}
}

func TestBeginKeyReservesOnce(t *testing.T) {
	s := open(t, t.TempDir())
	k := Key{Caller: "me", Key: "k", Op: "run", Hash: "h", Created: time.Unix(1, 0)}
	if _, fresh, err := s.BeginKey(t.Context(), k); err != nil || !fresh {
		t.Fatalf("BeginKey = fresh %t, %v; want a fresh key", fresh, err)
	}
	if got, fresh, err := s.BeginKey(t.Context(), k); err != nil || fresh || got.State == KeyAnswered {
		t.Fatalf("second BeginKey = %+v, fresh %t, %v; want the running one", got, fresh, err)
	}
	other := k
	other.Hash = "x"
	if _, _, err := s.BeginKey(t.Context(), other); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Fatalf("BeginKey with another request: %v, want InvalidArgument", err)
	}
	if open, err := s.OpenKeys(t.Context()); err != nil || len(open) != 1 {
		t.Fatalf("OpenKeys = %v, %v; want one", open, err)
	}
	if err := s.FinishKey(t.Context(), "me", "k", "ref", []byte("answer"), manyKeys); err != nil {
		t.Fatal(err)
	}
	if got, fresh, err := s.BeginKey(t.Context(),
		k); err != nil || fresh || got.State != KeyAnswered || string(got.Answer) != "answer" || got.Ref != "ref" {
		t.Fatalf("BeginKey after FinishKey = %+v, fresh %t, %v; want the answer and ref", got, fresh, err)
	}
	if err := s.DropKey(t.Context(), "me", "k"); err != nil { // a finished key stays
		t.Fatal(err)
	}
	if _, fresh, _ := s.BeginKey(t.Context(), k); fresh {
		t.Fatal("DropKey of a finished key made it fresh, want it kept")
	}
}

func TestShellEndsOnce(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	if err := s.InsertShell(ctx, Shell{ID: "s1", Sandbox: "aaaaaaaa", Caller: "me", Argv: []string{"x"},
		Started: time.Unix(1, 0)}); err != nil {
		t.Fatal(err)
	}
	if err := s.EndShell(ctx, "s1", time.Unix(2, 0), runtime.Result{Ending: runtime.Exited}); err != nil {
		t.Fatal(err)
	}
	if err := s.EndShells(ctx, "aaaaaaaa", time.Unix(3, 0), runtime.Result{Ending: runtime.SandboxLost}); err != nil {
		t.Fatal(err)
	}
	if err := s.InsertShell(ctx, Shell{ID: "s2", Sandbox: "aaaaaaaa", Caller: "me", Argv: []string{"x"},
		Started: time.Unix(2, 0), TTY: true}); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Shells(ctx, "aaaaaaaa"); err != nil || len(list) != 2 || list[0].TTY || !list[1].TTY {
		t.Errorf("Shells = %+v, %v; want two, only the second with a TTY", list, err)
	}
	if err := s.DeleteShell(ctx, "s2"); err != nil {
		t.Error(err)
	}
	got, err := s.Shell(ctx, "s1")
	if err != nil || got.Result.Ending != runtime.Exited {
		t.Fatalf("Shell = %+v, %v; want ending %s", got, err, runtime.Exited)
	}
}

func TestForgetDeletesEndedOnly(t *testing.T) {
	s := open(t, t.TempDir())
	ctx := t.Context()
	for _, id := range []string{"aaaaaaaa", "bbbbbbbb"} {
		if err := s.Insert(ctx, row(id)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Update(ctx, "aaaaaaaa", func(b *Sandbox) error {
		b.State, b.Ended = Gone, time.Unix(10,
			0)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if n, err := s.Forget(ctx, time.Unix(11, 0)); err != nil || n != 1 {
		t.Fatalf("Forget = %d, %v; want 1", n, err)
	}
	if live, err := s.Live(ctx); err != nil || len(live) != 1 {
		t.Fatalf("Live = %v, %v; want one", live, err)
	}
}

func TestLockIsExclusive(t *testing.T) {
	dir := t.TempDir()
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockDir(dir); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Fatalf("second LockDir: %v, want Unavailable", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	l, err = LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	l.Unlock()
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.db.ExecContext(context.Background(), "PRAGMA user_version = 99"); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if _, err := Open(t.Context(), dir); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Fatalf("Open of a newer version: %v, want FailedPrecondition", err)
	}
}

// A key prevents a second run while its request runs, and its answer is kept for the same time
// afterwards.
func TestForgetKeepsRunningKeys(t *testing.T) {
	s := open(t, t.TempDir())
	old := time.Now().Add(-2 * time.Hour)
	for _, key := range []string{"under way", "answered"} {
		if _, _, err := s.BeginKey(t.Context(),
			Key{Caller: "me", Key: key, Op: "run", Hash: "h", Created: old}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.FinishKey(t.Context(), "me", "answered", "", []byte("{}"), manyKeys); err != nil {
		t.Fatal(err)
	}
	forget := func(before time.Time, want map[string]bool) {
		t.Helper()
		if _, err := s.Forget(t.Context(), before); err != nil {
			t.Fatal(err)
		}
		for key, kept := range want {
			_, fresh, err := s.BeginKey(t.Context(),
				Key{Caller: "me", Key: key, Op: "run", Hash: "h", Created: time.Now()})
			if err != nil || fresh == kept {
				t.Errorf("BeginKey(%s) after Forget = fresh %t, %v; want fresh %t", key, fresh, err, !kept)
			}
		}
	}
	forget(time.Now().Add(-time.Hour), map[string]bool{"under way": true, "answered": true})
	forget(time.Now().Add(time.Hour), map[string]bool{"under way": true, "answered": false})
}

// A probe of the lock holds it for a moment.
func TestLockWaitsForProbe(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "lock")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			if unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil {
				_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	for range 500 {
		l, err := LockDir(dir)
		if err != nil {
			t.Error(err)
			break
		}
		if err := l.Unlock(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	<-stopped
}

// TestWriteThatHasBegunCompletes cancels a write while the database runs it.
func TestWriteThatHasBegunCompletes(t *testing.T) {
	s := open(t, t.TempDir())
	if _, err := s.db.ExecContext(t.Context(), "CREATE TABLE numbers (n INTEGER)"); err != nil {
		t.Fatal(err)
	}
	const rows = 200_000
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := exec(ctx, s.db, "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < ?) "+
		"INSERT INTO numbers SELECT n FROM c", rows)
	if err != nil || ctx.Err() == nil {
		t.Fatalf("exec = %v with a context that ended with %v, want no error and an ended context", err, ctx.Err())
	}
	var got int
	if err := s.db.QueryRowContext(t.Context(), "SELECT count(*) FROM numbers").Scan(&got); err != nil || got != rows {
		t.Errorf("table has %d rows, %v; want %d", got, err, rows)
	}
	if _, err := exec(ctx, s.db, "DELETE FROM numbers"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("exec with an ended context = %v, want %v", err, context.DeadlineExceeded)
	}
}

// TestRevocationThatHasBegunCompletes cancels a revocation while the database runs it.
func TestRevocationThatHasBegunCompletes(t *testing.T) {
	s := open(t, t.TempDir())
	if err := s.InsertToken(t.Context(), Token{ID: "a", Hash: []byte("h"), Caller: "ann"}); err != nil {
		t.Fatal(err)
	}
	const slow = `CREATE TABLE numbers (n INTEGER); CREATE TRIGGER slow AFTER UPDATE ON tokens BEGIN
		INSERT INTO numbers SELECT n FROM (
			WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n+1 FROM c WHERE n < 100000) SELECT n FROM c); END`
	if _, err := s.db.ExecContext(t.Context(), slow); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	got, err := s.RevokeToken(ctx, "a", time.Unix(7, 0))
	if err != nil || got.Revoked.IsZero() || ctx.Err() == nil {
		t.Errorf("RevokeToken = %+v, %v with a context that ended with %v, want a revoked token and an ended context",
			got, err, ctx.Err())
	}
}
