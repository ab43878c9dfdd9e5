package jobs

import (
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// finalAttempt reports whether no retry follows the result.
func (s *Service) finalAttempt(a *attempt, res v1.ExecResult) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return a.stopped != "" || a.number > a.request.Retries ||
		!retries(a.request.RetryOn, runtime.Ending(res.Ending), res.ExitCode)
}

// record records the end of an attempt, and queues the next one if it is retried. It tries again
// until it succeeds, and reports false if the service stops before.
func (s *Service) record(a *attempt, sandbox string, res v1.ExecResult) bool {
	v := v1.JobAttempt{Attempt: a.number, SandboxID: sandbox, EndedAt: time.Now().UTC(), Result: res}
	if !a.started.IsZero() {
		at := a.started.UTC()
		v.StartedAt = &at
	}
	retry := !s.finalAttempt(a, res)
	for {
		_, err := s.rows.EndJobCommand(s.ctx, a.id, a.index, a.number, v, outcomeOf(res), retry)
		if err == nil {
			break
		}
		s.log.Error("failed to record the end of a job's command; will retry", "job", a.id, "command", a.index, "error", err)
		if !s.pause(failurePause) {
			return false
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.notify(a.index)
	if retry && a.stopped == "" {
		a.queued = append(a.queued, command{index: a.index, number: a.number + 1})
		return true
	}
	a.left--
	s.checkDone(a.job)
	return true
}

// requeue queues a started attempt that its sandbox never received.
func (s *Service) requeue(a *attempt) {
	for {
		_, err := s.rows.RequeueJobCommand(s.ctx, a.id, a.index, a.number)
		if err == nil {
			break
		}
		s.log.Error("failed to queue a job's command again; will retry", "job", a.id, "command", a.index, "error", err)
		if !s.pause(failurePause) {
			return
		}
	}
	failpoint.Hit("jobs.attempt.requeued")
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.stopped == "" {
		a.queued = append([]command{a.command}, a.queued...)
		return
	}
	a.left--
	s.checkDone(a.job)
}
