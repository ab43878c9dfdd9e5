package jobs

import (
	"maps"
	"slices"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// queuedByCluster is the value of queued_by for commands that the cluster's queue holds.
const queuedByCluster = "cluster"

// queued returns how the cluster's queue starts the sandbox of a native attempt, or nil for others.
func (s *Service) queued(a *attempt) *scheduler.Queued {
	if !a.request.Native {
		return nil
	}
	return &scheduler.Queued{
		Queue:   runtime.Queue{Name: a.request.Queue, Suspended: a.request.Suspend},
		Waiting: func(reason string) { s.hold(a, reason) },
		Keep:    func() bool { return s.ctx.Err() != nil }, // the next process waits for it
	}
}

// hold records that the cluster's queue holds an attempt, or without a reason, that it no longer
// does.
func (s *Service) hold(a *attempt, reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := a.job.held
	if reason == "" {
		delete(held, a.index)
		return
	}
	if len(held) == 0 {
		s.publish(a.job, "held", reason)
	}
	held[a.index], a.waiting = reason, ""
}

// heldFirst moves the commands whose sandboxes wait in the cluster's queue to the front. Otherwise
// a retry could take their place, and the cluster could start a sandbox that no command waits for.
func (j *job) heldFirst(live []store.Sandbox) {
	waits := map[string]bool{}
	for _, row := range live {
		if row.Waits() {
			waits[row.Lease.Attempt] = true
		}
	}
	var held, rest []command
	for _, c := range j.queued {
		if waits[attemptID(j.id, c.index, c.number)] {
			held = append(held, c)
		} else {
			rest = append(rest, c)
		}
	}
	j.queued = slices.Concat(held, rest)
}

// pauseOf returns the pause before a command that was postponed so many times is tried again. It
// grows for native commands, because every try creates a Job.
func pauseOf(native bool, postponed int) time.Duration {
	if !native {
		return retryPause
	}
	return min(retryPause<<min(postponed-1, 10), maxRetryPause)
}

// held returns the commands of a job that the cluster's queue holds.
func (s *Service) held(id string) map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[int]bool{}
	if j := s.active[id]; j != nil {
		for index := range j.held {
			out[index] = true
		}
	}
	return out
}

// count counts commands that run or wait for a sandbox. The caller holds mu.
func (s *Service) count(j *job, n int) {
	j.running += n
	if !j.request.Native {
		s.running += n
	}
}

// full reports whether no further command of the job's kind may start, when so many native commands
// of its caller wait or run. The caller holds mu.
func (s *Service) full(j *job, native int) bool {
	if j.request.Native {
		return native >= s.opts.Limits.Native
	}
	return s.running >= s.opts.MaxRunning
}

// describeHeld adds to an active job what the cluster's queue holds. The caller holds mu.
func (j *job) describeHeld(out *v1.Job) {
	if len(j.held) == 0 {
		return
	}
	out.QueuedBy = queuedByCluster
	if out.Detail == "" {
		out.Detail = j.held[slices.Min(slices.Collect(maps.Keys(j.held)))]
	}
}
