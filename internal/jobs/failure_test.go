package jobs_test

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
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
	const n = 60
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
	for range 60 {
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
