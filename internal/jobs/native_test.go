package jobs_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/jobs"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// newQueue returns a world whose host holds native sandboxes.
func newQueue(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.queue = true
	return w
}

// suspended creates a native job and waits until the host holds all of its commands that may run.
func (s *service) suspended(t *testing.T, w *world, r v1.JobRequest) v1.Job {
	t.Helper()
	r.Native, r.Suspend, r.Parallelism = true, true, max(r.Parallelism, 1)
	before := len(w.host.Queued())
	j := s.create(t, bob, r)
	eventually(t, "the cluster holds the commands", func() bool {
		got, err := s.Jobs.Get(t.Context(), bob, j.ID, 0)
		return err == nil && got.QueuedBy == "cluster" && len(w.host.Queued()) == before+min(r.Parallelism, j.Commands.Total)
	})
	return j
}

func TestNativeJobWaitsForClusterAcrossRestarts(t *testing.T) {
	w := newQueue(t)
	s := w.start(t, 20)
	j := s.suspended(t, w, v1.JobRequest{Commands: texts("one", "exit 3"), Parallelism: 2})
	held := slices.Sorted(maps.Keys(w.host.Queued()))
	list, err := s.Jobs.Results(t.Context(), bob, j.ID, 0, 0)
	if err != nil || list[0].State != "queued" || list[0].QueuedBy != "cluster" {
		t.Errorf("commands = %+v, %v; want them queued by the cluster", list, err)
	}
	s.stop()
	s = w.start(t, 20)
	eventually(t, "the next service waits for them", func() bool {
		got, err := s.Jobs.Get(t.Context(), bob, j.ID, 0)
		return err == nil && got.State == "queued" && got.QueuedBy == "cluster"
	})
	if now := slices.Sorted(maps.Keys(w.host.Queued())); !slices.Equal(now, held) || len(w.started()) > 0 {
		t.Errorf("the cluster holds %v, want %v; commands ran = %q, want none", now, held, w.started())
	}
	for _, id := range held {
		w.host.Resume(id)
	}
	got, list := s.await(t, bob, j.ID)
	if got.Ending != "failed" || got.QueuedBy != "" || list[0].Outcome != "succeeded" || list[1].Outcome != "failed" {
		t.Errorf("job = %+v %+v, want one command succeeded and one failed", got, list)
	}
	if out, err := s.Jobs.Output(t.Context(), bob, j.ID, outputAt(0)); err != nil || out.Data != "one" {
		t.Errorf("output = %+v, %v; want that of the command", out, err)
	}
	eventually(t, "nothing is left of them", func() bool {
		return !slices.ContainsFunc(w.host.IDs(), func(id string) bool { return slices.Contains(held, id) })
	})
	if ran := w.started(); len(ran) != 2 {
		t.Errorf("commands ran = %q, want each once", ran)
	}
}

// TestRestartAwaitsHeldCommandBeforeRetry has a retry of the first command wait behind the second
// command, which the cluster holds.
func TestRestartAwaitsHeldCommandBeforeRetry(t *testing.T) {
	w := newQueue(t)
	s := w.start(t, 20)
	j := s.suspended(t, w, v1.JobRequest{Commands: texts("exit 3", "two"), Retries: 1, RetryOn: []string{"exited"}})
	first := slices.Collect(maps.Keys(w.host.Queued()))
	w.host.Resume(first[0])
	eventually(t, "the cluster holds the second command", func() bool { return len(w.host.Queued()) == 1 })
	held := slices.Collect(maps.Keys(w.host.Queued()))
	s.stop()
	s = w.start(t, 20)
	eventually(t, "the next service waits for a command", func() bool {
		got, err := s.Jobs.Get(t.Context(), bob, j.ID, 0)
		return err == nil && got.QueuedBy == "cluster"
	})
	list, err := s.Jobs.Results(t.Context(), bob, j.ID, 0, 0)
	if err != nil || list[0].QueuedBy != "" || list[1].QueuedBy != "cluster" {
		t.Errorf("commands = %+v, %v; want only the second one queued by the cluster", list, err)
	}
	if now := slices.Collect(maps.Keys(w.host.Queued())); !slices.Equal(now, held) {
		t.Errorf("the cluster holds %v, want %v", now, held)
	}
	w.host.Resume(held[0])
	eventually(t, "the cluster holds the retry", func() bool { return len(w.host.Queued()) == 1 })
	for id := range w.host.Queued() {
		w.host.Resume(id)
	}
	s.await(t, bob, j.ID)
	if ran, want := w.started(), []string{"exit 3", "two", "exit 3"}; !slices.Equal(ran, want) {
		t.Errorf("commands ran = %q, want %q", ran, want)
	}
}

func TestCancelWithdrawsHeldCommand(t *testing.T) {
	w := newQueue(t)
	s := w.start(t, 20)
	j := s.suspended(t, w, v1.JobRequest{Commands: texts("one", "two")})
	if _, err := s.Jobs.Cancel(t.Context(), bob, j.ID); err != nil {
		t.Fatal(err)
	}
	got, list := s.await(t, bob, j.ID)
	if got.Ending != "cancelled" || list[0].Outcome != "cancelled" || len(w.host.Queued()) > 0 || len(w.started()) > 0 {
		t.Errorf("job = %+v %+v, held %v, ran %q; want it cancelled and nothing left", got, list, w.host.Queued(), w.started())
	}
}

// TestRestartWithdrawsWhatNoCommandNeeds stops a job in the database while the service is away.
func TestRestartWithdrawsWhatNoCommandNeeds(t *testing.T) {
	w := newQueue(t)
	s := w.start(t, 20)
	j := s.suspended(t, w, v1.JobRequest{Commands: texts("one")})
	rows := s.store
	if err := rows.Jobs().StopJob(t.Context(), j.ID, "cancelled"); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s = w.start(t, 20)
	if got, _ := s.await(t, bob, j.ID); got.Ending != "cancelled" || len(w.host.Queued()) > 0 {
		t.Errorf("job = %+v, held %v; want it cancelled and nothing held", got, w.host.Queued())
	}
}

func TestDeletedInQueueIsNotRun(t *testing.T) {
	w := newQueue(t)
	s := w.start(t, 20)
	j := s.suspended(t, w, v1.JobRequest{Commands: texts("one")})
	for id := range w.host.Queued() {
		w.host.Withdraw(id)
	}
	_, list := s.await(t, bob, j.ID)
	if r := list[0].Attempts[0].Result; r.Ending != "not_run" || !strings.Contains(r.Detail, "it was withdrawn") {
		t.Errorf("result = %+v, want not_run with the reason", r)
	}
}

func TestHeldCommandTakesNoPlaceOfOthers(t *testing.T) {
	w := newQueue(t)
	w.limits = jobs.Limits{Native: 1}
	s := w.start(t, 1)
	held := s.suspended(t, w, v1.JobRequest{Commands: texts("held")})
	second := s.create(t, bob, v1.JobRequest{Commands: texts("second"), Native: true, Queue: "team"})
	other := s.create(t, bob, v1.JobRequest{Commands: texts("other")})
	if got, _ := s.await(t, bob, other.ID); got.Ending != "succeeded" {
		t.Errorf("ordinary job = %+v, want it succeeded", got)
	}
	if n := len(w.host.Queued()); n != 1 {
		t.Errorf("the cluster holds %d commands, want the limit of 1", n)
	}
	third := s.create(t, eve, v1.JobRequest{Commands: texts("third"), Native: true, Suspend: true})
	eventually(t, "the cluster holds a command of another caller", func() bool { return len(w.host.Queued()) == 2 })
	if _, err := s.Jobs.Cancel(t.Context(), eve, third.ID); err != nil {
		t.Fatal(err)
	}
	s.await(t, eve, third.ID)
	if _, err := s.Jobs.Cancel(t.Context(), bob, held.ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the second command is submitted to its queue", func() bool {
		return slices.Contains(slices.Collect(maps.Values(w.host.Queued())), runtime.Queue{Name: "team"})
	})
	if _, err := s.Jobs.Cancel(t.Context(), bob, second.ID); err != nil {
		t.Fatal(err)
	}
	s.await(t, bob, second.ID)
}

// TestEventsFollowTheJob reads the events of two jobs as their callers.
func TestEventsFollowTheJob(t *testing.T) {
	w := newQueue(t)
	s := w.start(t, 20)
	other := s.create(t, eve, v1.JobRequest{Commands: texts("other")})
	s.await(t, eve, other.ID)
	j := s.suspended(t, w, v1.JobRequest{Commands: texts("one")})
	for id := range w.host.Queued() {
		w.host.Resume(id)
	}
	s.await(t, bob, j.ID)
	events := func(p caller.Principal, job string) (list []string) {
		t.Helper()
		err := s.Events.Watch(t.Context(), p, eventhub.Query{Job: job}, func(e v1.ServiceEvent) error {
			list = append(list, e.Type+" "+e.Reason)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	want := []string{"job.created ", "job.held queued by the fake host", "job.running ", "job.ended succeeded"}
	if got := events(bob, j.ID); !slices.Equal(got, want) {
		t.Errorf("events of the job = %q, want %q", got, want)
	}
	if got := events(bob, other.ID); len(got) > 0 {
		t.Errorf("events of another caller's job = %q, want none", got)
	}
}

func TestNativeRequestIsChecked(t *testing.T) {
	with, without := newQueue(t).start(t, 20), newWorld(t).start(t, 20)
	one := texts("one")
	for _, c := range []struct {
		s     *service
		r     v1.JobRequest
		field string
	}{
		{without, v1.JobRequest{Native: true, Commands: one}, "native"},
		{with, v1.JobRequest{Queue: "a", Commands: one}, "queue"},
		{with, v1.JobRequest{Suspend: true, Commands: one}, "suspend"},
		{with, v1.JobRequest{Native: true, Queue: "no queue", Commands: one}, "queue"},
	} {
		_, err := c.s.Jobs.Create(t.Context(), bob, c.r)
		if e, ok := errors.AsType[*usererror.InvalidError](err); !ok || e.Field != c.field {
			t.Errorf("Create(%+v) = %v, want an error about %s", c.r, err, c.field)
		}
	}
}
