package jobs_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// recorded starts a job whose first command runs and stops the service, so that a test can change
// what it left.
func recorded(t *testing.T, w *world, commands ...string) string {
	t.Helper()
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts(commands...)})
	eventually(t, "the first command runs", func() bool {
		c, err := s.store.Jobs().JobCommand(t.Context(), j.ID, 0)
		return err == nil && c.State == store.JobStarted && len(w.started()) == 1
	})
	s.stop()
	return j.ID
}

// change runs do with the store of a stopped service.
func (w *world) change(t *testing.T, do func(*store.Store) error) {
	t.Helper()
	st, err := store.Open(t.Context(), w.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	if err := do(st); err != nil {
		t.Fatal(err)
	}
}

func TestRestartContinuesRunningCommand(t *testing.T) {
	w := newWorld(t)
	id := recorded(t, w, "hold", "next")
	s := w.start(t, 20)
	w.release()
	got, list := s.await(t, bob, id)
	if got.Ending != "succeeded" || len(list[0].Attempts) != 1 || len(list[1].Attempts) != 1 {
		t.Errorf("job = %+v %+v, want it succeeded with one attempt of each command", got, list)
	}
	if out, err := s.Jobs.Output(t.Context(), bob, id, outputAt(0)); err != nil || out.Data != "held\n" {
		t.Errorf("output = %+v, %v; want it once", out, err)
	}
	if ran := w.started(); len(ran) != 2 {
		t.Errorf("commands ran = %q, want each once", ran)
	}
}

func TestRestartRunsCommandThatWasNotSent(t *testing.T) {
	w := newWorld(t)
	id := recorded(t, w, "hang", "next")
	w.forget() // as if the sandbox never received it
	s := w.start(t, 20)
	eventually(t, "the command runs in another sandbox", func() bool { return len(w.started()) == 2 })
	w.release()
	got, list := s.await(t, bob, id)
	if got.Ending != "succeeded" || len(list[0].Attempts) != 1 {
		t.Errorf("job = %+v %+v, want it succeeded with one attempt", got, list)
	}
}

// TestRestartDoesNotRepeatForgottenCommand has the sandbox forget a command that has written
// output.
func TestRestartDoesNotRepeatForgottenCommand(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("hold")})
	eventually(t, "the output is kept", func() bool {
		out, err := s.Jobs.Output(t.Context(), bob, j.ID, outputAt(0))
		return err == nil && out.Data == "held\n"
	})
	s.stop()
	w.forget()
	s = w.start(t, 20)
	got, list := s.await(t, bob, j.ID)
	if got.Ending != "unknown" || len(list[0].Attempts) != 1 || len(w.started()) != 1 {
		t.Errorf("job = %+v %+v after the commands %q, want unknown and one run", got, list, w.started())
	}
}

// TestLostSandboxKeepsOutputInResult has the sandbox of a command that has written output
// disappear.
func TestLostSandboxKeepsOutputInResult(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("hold")})
	eventually(t, "the output is kept", func() bool {
		out, err := s.Jobs.Output(t.Context(), bob, j.ID, outputAt(0))
		return err == nil && out.Data == "held\n"
	})
	s.stop()
	for _, id := range w.host.IDs() {
		w.host.Vanish(id)
	}
	s = w.start(t, 20)
	_, list := s.await(t, bob, j.ID)
	if res := list[0].Attempts[0].Result; res.Ending != "unknown" || res.StdoutBytes != 5 {
		t.Errorf("result = %+v, want unknown with 5 bytes of output", res)
	}
}

// TestCancelEndsSandboxThatDoesNotAnswer cancels a command whose sandbox does not answer a kill.
func TestCancelEndsSandboxThatDoesNotAnswer(t *testing.T) {
	w := newWorld(t)
	w.lose = func(op wire.Op) bool { return op == wire.OpKill }
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("hold", "never")})
	eventually(t, "the command runs", func() bool { return len(w.started()) == 1 })
	if _, err := s.Jobs.Cancel(t.Context(), bob, j.ID); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.await(t, bob, j.ID); got.Ending != "cancelled" {
		t.Errorf("job = %+v, want it cancelled", got)
	}
}

func TestRestartWithoutSandboxEndsAsUnknown(t *testing.T) {
	w := newWorld(t)
	id := recorded(t, w, "hold", "next")
	for _, id := range w.host.IDs() {
		w.host.Vanish(id)
	}
	s := w.start(t, 20)
	got, list := s.await(t, bob, id)
	if want := (v1.JobCounts{Total: 2, Succeeded: 1, Unknown: 1}); got.Ending != "unknown" || got.Commands != want {
		t.Errorf("job = %+v, want unknown with %+v", got, want)
	}
	if a := list[0].Attempts; len(a) != 1 || a[0].Result.Ending != "unknown" {
		t.Errorf("attempts = %+v, want one whose ending is unknown", a)
	}
	if ran := w.started(); len(ran) != 2 {
		t.Errorf("commands ran = %q, want no repetition", ran)
	}
}

func TestRestartCompletesCancel(t *testing.T) {
	w := newWorld(t)
	id := recorded(t, w, "hold", "never")
	w.change(t, func(st *store.Store) error { return st.Jobs().StopJob(t.Context(), id, "cancelled") })
	s := w.start(t, 20)
	got, _ := s.await(t, bob, id)
	if want := (v1.JobCounts{Total: 2, Cancelled: 2}); got.Ending != "cancelled" || got.Commands != want {
		t.Errorf("job = %+v, want cancelled with %+v", got, want)
	}
}

func TestRestartPastDeadlineStopsJob(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("hold", "never"), DeadlineMS: 200})
	s.stop()
	s = w.start(t, 20)
	if got, _ := s.await(t, bob, j.ID); got.Ending != "deadline" {
		t.Errorf("job = %+v, want deadline", got)
	}
}

func TestRestartEndsJobWhoseCommandsEnded(t *testing.T) {
	w := newWorld(t)
	id := recorded(t, w, "hold")
	w.change(t, func(st *store.Store) error {
		ended := v1.JobAttempt{Attempt: 1, EndedAt: time.Now(), Result: v1.ExecResult{Ending: "exited"}}
		_, err := st.Jobs().EndJobCommand(t.Context(), id, 0, 1, ended, "succeeded", false)
		return err
	})
	s := w.start(t, 20)
	if got, _ := s.await(t, bob, id); got.Ending != "succeeded" {
		t.Errorf("job = %+v, want it succeeded", got)
	}
	eventually(t, "the lease of the ended attempt ends", func() bool {
		live, err := s.store.Live(t.Context())
		for _, row := range live {
			if row.Lease.Attempt != "" {
				return false
			}
		}
		return err == nil
	})
}

func TestRestartRemovesFilesOfUnknownJobs(t *testing.T) {
	w := newWorld(t)
	left := filepath.Join(w.dir, "jobs", "left")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	w.start(t, 20)
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("directory of an unknown job: %v, want it removed", err)
	}
}

func TestExpiredJobsAreRemoved(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "x"}, TTLMS: 1})
	s.await(t, bob, j.ID)
	s.stop()
	s = w.start(t, 20) // it removes expired jobs at once
	eventually(t, "the job is removed with its files", func() bool {
		_, err := s.Jobs.Get(t.Context(), bob, j.ID, 0)
		_, files := os.Stat(filepath.Join(w.dir, "jobs", j.ID))
		return errdefs.IsNotFound(err) && os.IsNotExist(files)
	})
}

// TestLostAnswerOfStartIsNotRepeated cuts the stream of every start. Whether the command runs is
// asked, and it is not sent again.
func TestLostAnswerOfStartIsNotRepeated(t *testing.T) {
	w := newWorld(t)
	w.lose = func(op wire.Op) bool { return op == wire.OpStart }
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "x"}})
	got, list := s.await(t, bob, j.ID)
	if got.Ending != "unknown" || len(list[0].Attempts) != 1 || list[0].Attempts[0].Result.Ending != "sandbox_lost" {
		t.Errorf("job = %+v %+v, want one attempt that ended as sandbox_lost", got, list)
	}
}
