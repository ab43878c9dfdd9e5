package jobs

import (
	"cmp"
	"context"
	"encoding/json"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Outcomes of commands, and endings of jobs besides stopCancelled and stopDeadline.
const (
	outcomeSucceeded = "succeeded"
	outcomeFailed    = "failed"
	outcomeCancelled = "cancelled"
	outcomeUnknown   = "unknown"
)

// States of jobs and commands that the API shows.
const (
	stateQueued   = "queued"
	stateRunning  = "running"
	stateStopping = "stopping"
	stateEnded    = "ended"
)

// outcomeOf classifies the result of a command's last attempt.
func outcomeOf(r v1.ExecResult) string {
	switch runtime.Ending(r.Ending) {
	case runtime.Exited:
		if r.ExitCode == 0 {
			return outcomeSucceeded
		}
		return outcomeFailed
	case runtime.Cancelled:
		return outcomeCancelled
	case runtime.SandboxLost, unknown:
		return outcomeUnknown
	default:
		return outcomeFailed
	}
}

// endingOf returns the ending of a job whose commands have ended.
func endingOf(stopped string, c store.JobCounts) string {
	switch {
	case stopped == stopDeadline:
		return stopDeadline
	case stopped != "":
		return stopCancelled
	case c.Outcomes[outcomeFailed] > 0 || c.Outcomes[outcomeCancelled] > 0:
		return outcomeFailed
	case c.Outcomes[outcomeUnknown] > 0:
		return outcomeUnknown
	}
	return outcomeSucceeded
}

func presentCounts(c store.JobCounts) v1.JobCounts {
	out := v1.JobCounts{
		Queued: c.States[store.JobQueued], Running: c.States[store.JobStarted], Succeeded: c.Outcomes[outcomeSucceeded],
		Failed: c.Outcomes[outcomeFailed], Cancelled: c.Outcomes[outcomeCancelled], Unknown: c.Outcomes[outcomeUnknown],
	}
	out.Total = out.Queued + out.Running + out.Succeeded + out.Failed + out.Cancelled + out.Unknown
	return out
}

// present converts a job to its API form.
func (s *Service) present(ctx context.Context, row store.Job) (v1.Job, error) {
	if !row.Ended.IsZero() {
		out, err := presentRow(row)
		if err != nil {
			return v1.Job{}, err
		}
		out.State, out.EndedAt, out.ExpiresAt = stateEnded, &row.Ended, &row.Expires
		return out, json.Unmarshal(row.Counts, &out.Commands)
	}
	counts, err := s.rows.CountJobCommands(ctx, row.ID)
	if err != nil {
		return v1.Job{}, err
	}
	return s.presentActive(row, counts)
}

// presentRow returns the fields that a job has in every state.
func presentRow(row store.Job) (v1.Job, error) {
	var r v1.JobRequest
	if err := json.Unmarshal(row.Request, &r); err != nil {
		return v1.Job{}, err
	}
	out := v1.Job{
		ID: row.ID, Name: row.Name, Caller: row.Caller, Ending: row.Ending, Template: r.Template, Workspace: r.Workspace,
		Parallelism: r.Parallelism, CreatedAt: row.Created, DeadlineAt: row.Deadline,
	}
	if row.Stopped != "" {
		out.Detail = stopDetail(row.Stopped)
	}
	return out, nil
}

// presentActive converts a job that has not ended to its API form.
func (s *Service) presentActive(row store.Job, counts store.JobCounts) (v1.Job, error) {
	out, err := presentRow(row)
	if err != nil {
		return v1.Job{}, err
	}
	out.Commands = presentCounts(counts)
	switch {
	case row.Stopped != "":
		out.State = stateStopping
	case out.Commands.Queued == out.Commands.Total:
		out.State = stateQueued
	default:
		out.State = stateRunning
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if j := s.active[row.ID]; j != nil {
		out.Detail = cmp.Or(out.Detail, j.waiting)
		j.describeHeld(&out)
	}
	return out, nil
}

// publish publishes a change of a job's state to those who may see the job.
func (s *Service) publish(j *job, state, reason string) {
	s.opts.Events.Publish(v1.ServiceEvent{
		Type: "job." + state, Job: j.id, Caller: j.caller, Template: j.request.Template, Workspace: j.request.Workspace,
		Reason: reason,
	})
}

// presentCommand converts a command to its API form.
func presentCommand(c store.JobCommand) (v1.JobResult, error) {
	out := v1.JobResult{
		Index: c.Index, Name: c.Name, State: stateQueued, Outcome: c.Outcome, Attempt: c.Attempt, SandboxID: c.Sandbox,
	}
	switch c.State {
	case store.JobStarted:
		out.State, out.Outcome = stateRunning, ""
	case store.JobEnded:
		out.State = stateEnded
	default:
		out.Outcome = "" // that of the attempt before a retry
	}
	return out, json.Unmarshal(c.Attempts, &out.Attempts)
}
