package jobs_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// alter runs SQL in the database of a running service.
func (w *world) alter(t *testing.T, query string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(w.dir, store.StateFile)+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), query); err != nil {
		t.Fatal(err)
	}
}

// TestRecordedJobIsNotCreatedAgain has the row of a new job become unreadable at once.
func TestRecordedJobIsNotCreatedAgain(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	w.alter(t, "CREATE TRIGGER damage AFTER INSERT ON jobs BEGIN UPDATE jobs SET principal = '{' WHERE id = NEW.id; END")
	p := bob
	p.Key = "k"
	r := v1.JobRequest{Exec: v1.Exec{Command: "once"}}
	first, err := s.Jobs.Create(t.Context(), p, r)
	if err != nil {
		t.Fatalf("Create: %v, want the recorded job", err)
	}
	if again := s.create(t, p, r); again.ID != first.ID {
		t.Errorf("repeated request created %s, want %s", again.ID, first.ID)
	}
	if got, _ := s.await(t, bob, first.ID); got.Ending != "succeeded" || len(w.started()) != 1 {
		t.Errorf("job = %+v after %q, want it succeeded after one run", got, w.started())
	}
}

// TestCancelOfNewJobIsNotLost cancels jobs as soon as a list shows them.
func TestCancelOfNewJobIsNotLost(t *testing.T) {
	s := newWorld(t).start(t, 20)
	const n = 12
	cancelled := map[string]bool{}
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() {
		for len(cancelled) < n && t.Context().Err() == nil {
			list, err := s.Jobs.List(t.Context(), bob, false)
			if err != nil {
				return
			}
			for _, j := range list {
				if cancelled[j.ID] {
					continue
				}
				cancelled[j.ID] = true
				if _, err := s.Jobs.Cancel(t.Context(), bob, j.ID); err != nil {
					t.Error(err)
				}
			}
		}
	})
	for range n {
		j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "hold"}})
		if got, _ := s.await(t, bob, j.ID); got.Ending != "cancelled" {
			t.Errorf("job = %+v, want it cancelled", got)
		}
	}
}

// TestLateCancelDoesNotContradictEnding cancels jobs at about the time of their end.
func TestLateCancelDoesNotContradictEnding(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	for range 15 {
		j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "hold"}})
		eventually(t, "the command has started", func() bool { return len(w.started()) > 0 })
		w.release()
		for {
			c, err := s.store.Jobs().JobCommand(t.Context(), j.ID, 0)
			if err != nil {
				t.Fatal(err)
			}
			if c.State == store.JobEnded {
				break
			}
			w.release()
		}
		if _, err := s.Jobs.Cancel(t.Context(), bob, j.ID); err != nil {
			t.Fatal(err)
		}
		got, _ := s.await(t, bob, j.ID)
		if fmt.Sprint(got.Ending, " ", got.Detail) != "succeeded " &&
			fmt.Sprint(got.Ending, " ", got.Detail) != "cancelled the job was cancelled" {
			t.Errorf("job = %+v, want an ending that agrees with its detail", got)
		}
	}
}

// TestFailedStoreDoesNotFailCommand has the database refuse the record of a start.
func TestFailedStoreDoesNotFailCommand(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	w.alter(t, "CREATE TRIGGER refuse BEFORE UPDATE ON job_commands BEGIN SELECT RAISE(ABORT, 'broken'); END")
	j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "x"}})
	eventually(t, "the failure is shown", func() bool {
		got, err := s.Jobs.Get(t.Context(), bob, j.ID, 0)
		return err == nil && got.Detail != ""
	})
	w.alter(t, "DROP TRIGGER refuse")
	got, list := s.await(t, bob, j.ID)
	if got.Ending != "succeeded" || len(list[0].Attempts) != 1 || len(w.started()) != 1 {
		t.Errorf("job = %+v %+v, want it succeeded after one run", got, list)
	}
}

// TestUnwritableInputsEndCommand has every sandbox be lost, or be full, before its command starts.
func TestUnwritableInputsEndCommand(t *testing.T) {
	for _, c := range []struct {
		name string
		lose bool
	}{{"lost", true}, {"full", false}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t)
			w.lose = func(op wire.Op) bool { return c.lose && op == wire.OpWrite }
			s := w.start(t, 20)
			j := s.create(t, bob, v1.JobRequest{
				Exec: v1.Exec{Command: "x"}, Files: []v1.JobFile{{Path: "f", Content: "text"}}, DeadlineMS: 20_000,
			})
			got, list := s.await(t, bob, j.ID)
			if got.Ending != "failed" || len(list[0].Attempts) != 1 || list[0].Attempts[0].Result.Ending != "not_run" {
				t.Errorf("job = %+v %+v, want one attempt that ended as not_run", got, list)
			}
		})
	}
}

// TestNoCommandStartsAfterStop stops a job in the database, as the first step of a cancel does,
// while the next command gets its sandbox.
func TestNoCommandStartsAfterStop(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("hold", "never")})
	eventually(t, "the first command runs", func() bool { return len(w.started()) == 1 })
	if err := s.store.Jobs().StopJob(t.Context(), j.ID, "cancelled"); err != nil {
		t.Fatal(err)
	}
	w.release()
	eventually(t, "the second command has a sandbox", func() bool {
		live, err := s.store.Live(t.Context())
		return err == nil && slices.ContainsFunc(live, func(row store.Sandbox) bool {
			return row.Lease.Attempt == j.ID+".1.1"
		})
	})
	if _, err := s.Jobs.Cancel(t.Context(), bob, j.ID); err != nil {
		t.Fatal(err)
	}
	got, _ := s.await(t, bob, j.ID)
	if want := (v1.JobCounts{Total: 2, Succeeded: 1, Cancelled: 1}); got.Ending != "cancelled" || got.Commands != want ||
		len(w.started()) != 1 {
		t.Errorf("job = %+v after %q, want the second command cancelled", got, w.started())
	}
}

// TestRevokedTokenStartsNoCommand revokes the token of a job while its command gets a sandbox.
func TestRevokedTokenStartsNoCommand(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	token, err := s.Callers.CreateToken(t.Context(), me, v1.TokenRequest{Caller: "bob", Trust: 3})
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock()
	w.lose = func(op wire.Op) bool {
		if op == wire.OpClaim {
			if _, err := s.Callers.RevokeToken(t.Context(), me, token.ID); err != nil {
				t.Error(err)
			}
		}
		return false
	}
	w.mu.Unlock()
	p := bob
	p.Token = token.ID
	j := s.create(t, p, v1.JobRequest{Exec: v1.Exec{Command: "never"}})
	got, _ := s.await(t, bob, j.ID)
	if got.Ending != "cancelled" || got.Detail != "the token that created the job was revoked or has expired" ||
		len(w.started()) != 0 {
		t.Errorf("job = %+v after %q, want it cancelled", got, w.started())
	}
}
