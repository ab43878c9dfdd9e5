// Package jobs runs jobs: lists of commands, each in a sandbox of its own, with bounded
// parallelism, retries, a deadline and kept results. A job survives restarts and crashes of the
// service.
//
// A command is queued, started or ended. Its row says started before the command is sent to its
// sandbox, and the sandbox keeps the command running while the service is away. After a restart a
// started command is found in its sandbox and goes on, is queued again if the sandbox never
// received it, or ends as unknown if the sandbox is gone. A command therefore never runs twice
// without a retry that its caller asked for.
//
// Output is kept in files below the state directory, bounded per stream and per caller. Commands of
// different callers start in turn.
//
// The methods of Service may be called concurrently.
package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Sandboxes are the engine's operations on sandboxes.
type Sandboxes interface {
	// Acquire leases a sandbox for the caller.
	Acquire(context.Context, caller.Principal, v1.SandboxRequest, core.Acquisition) (*scheduler.Lease, error)
	// CheckLease returns an error about a request that Acquire would refuse whenever it is made. native
	// reports that the engine's own queue would start the sandbox.
	CheckLease(p caller.Principal, r v1.SandboxRequest, native bool) error
	// CheckNative returns an *InvalidError of field native if the runtime has no queue of its own.
	CheckNative(context.Context) error
	// TemplateOfImage returns the template that has the image, or an *InvalidError of field image.
	TemplateOfImage(p caller.Principal, image string) (string, error)
	// Command validates a command and converts it to the guest's form. Its timeout is never zero.
	Command(id string, x v1.Exec) (wire.Command, error)
	// Start starts a background command in a sandbox. shell reports that the command is one for the
	// sandbox's shell.
	Start(use *scheduler.Use, c wire.Command, shell bool) (wire.Shell, error)
	// Present converts a result to its API form.
	Present(id string, r runtime.Result) v1.ExecResult
}

// Options configures a Service.
type Options struct {
	// Dir is the directory of outputs, inputs and artifacts. If it is "", jobs are refused.
	Dir       string
	Store     *store.Store
	Scheduler *scheduler.Scheduler
	Callers   *caller.Service
	Keys      *idempotency.Keys
	Sandboxes Sandboxes
	// Events receives the state changes of jobs.
	Events *eventhub.Hub
	// MaxRunning bounds the commands that run or wait for a sandbox at once (0: 64).
	MaxRunning int
	// MaxTTL bounds the leases of sandboxes. MaxOutput is the default of bytes kept per stream.
	MaxTTL    time.Duration
	MaxOutput int64
	// Limits bounds jobs. Zero fields take the defaults.
	Limits Limits
	Log    *slog.Logger
}

// Limits bounds what jobs use.
type Limits struct {
	Commands int // of one job, after the matrix
	Active   int // jobs of one caller that have not ended
	Kept     int // jobs of one caller in total
	Native   int // native commands of one caller that wait in the cluster's queue or run
	// Bytes bounds the commands, inputs, output and artifacts of one caller's jobs on disk.
	Bytes int64
	// Deadline and TTL bound what a request may ask for.
	Deadline, TTL time.Duration
}

// Service runs jobs. Use New.
type Service struct {
	opts Options
	log  *slog.Logger
	rows *store.JobStore

	mu      sync.Mutex
	active  map[string]*job // by id
	order   []*job          // active jobs, oldest first
	turn    uint64
	turns   map[string]uint64  // the last turn of each caller with active jobs
	running int                // commands that run or wait for a sandbox, without native ones
	space   map[string]*space  // by caller
	outputs map[string]*output // open output files, by path
	// ctx is the context of Run, or nil before Run. work counts the goroutines that it waits for.
	ctx    context.Context
	work   sync.WaitGroup
	closed bool          // no further goroutine starts
	wake   chan struct{} // holds one signal for the dispatcher
}

// New returns a Service. Recover and then Run start its work.
func New(opts Options) *Service {
	opts.MaxRunning = cmp.Or(opts.MaxRunning, 64)
	l := &opts.Limits
	l.Commands, l.Active, l.Kept = cmp.Or(l.Commands, 10_000), cmp.Or(l.Active, 100), cmp.Or(l.Kept, 1000)
	l.Deadline, l.TTL = cmp.Or(l.Deadline, 7*24*time.Hour), cmp.Or(l.TTL, 30*24*time.Hour)
	l.Native, l.Bytes = cmp.Or(l.Native, 100), cmp.Or(l.Bytes, 4<<30)
	return &Service{
		opts: opts, log: opts.Log, rows: opts.Store.Jobs(), active: map[string]*job{}, turns: map[string]uint64{}, space: map[string]*space{},
		outputs: map[string]*output{}, wake: make(chan struct{}, 1),
	}
}

// Op is the stored name of the operation that creates a job.
const Op = "job"

// Create records a job and starts its commands as sandboxes become available.
func (s *Service) Create(ctx context.Context, p caller.Principal, r v1.JobRequest) (v1.Job, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return v1.Job{}, err
	}
	do := func(ctx context.Context) (v1.Job, error) { return s.create(ctx, p.Keyless(), id.String(), r) }
	return idempotency.Do(ctx, s.opts.Keys, p, Op, id.String(), r, do, func(j v1.Job) v1.Job { return j })
}

// RecoverKey returns the job that an interrupted request created, or nil.
func (s *Service) RecoverKey(ctx context.Context, k store.Key) (any, error) {
	row, err := s.rows.Job(ctx, k.Ref)
	if errdefs.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.present(ctx, row)
}

func (s *Service) create(ctx context.Context, p caller.Principal, id string, r v1.JobRequest) (v1.Job, error) {
	if s.opts.Dir == "" {
		return v1.Job{}, usererror.Errorf(errdefs.ErrNotImplemented, "jobs need a server: start one with orchestrator serve")
	}
	sp := s.callerSpace(p.Caller)
	if err := sp.enter(ctx); err != nil {
		return v1.Job{}, err
	}
	defer sp.leave()
	commands, err := s.expand(ctx, p, &r)
	if err != nil {
		return v1.Job{}, err
	}
	now := time.Now()
	row := store.Job{
		ID: id, Caller: p.Caller, Name: r.Name, Created: now, Deadline: now.Add(milliseconds(r.DeadlineMS)),
	}
	size := int64(0)
	for _, c := range commands {
		size += c.Bytes()
	}
	if err := s.writeInputs(sp, id, size, r.Files); err != nil {
		return v1.Job{}, err
	}
	failpoint.Hit("jobs.create.inputs")
	if err := s.insert(context.WithoutCancel(ctx), p, &row, r, commands); err != nil {
		return v1.Job{}, errors.Join(err, s.removeFiles(p.Caller, id))
	}
	return s.presentActive(row, store.JobCounts{States: map[store.JobState]int{store.JobQueued: len(commands)}})
}

// insert completes the row of a job, records it and makes it active. The contents of its files are
// on disk. After the job is recorded nothing can fail: the caller would create it again.
func (s *Service) insert(
	ctx context.Context, p caller.Principal, row *store.Job, r v1.JobRequest, commands []store.JobCommand,
) (err error) {
	r.Files = slices.Clone(r.Files) // the caller's request stays as it is
	for i := range r.Files {
		r.Files[i].Content, r.Files[i].Base64 = "", ""
	}
	r.Exec, r.Commands, r.Matrix = v1.Exec{}, nil, nil // they have rows, and lists read every request
	if row.Request, err = json.Marshal(r); err != nil {
		return err
	}
	p.Via, p.By = "", ""
	if row.Principal, err = json.Marshal(p); err != nil { //nolint:musttag // only this package reads it
		return err
	}
	j, err := s.newJob(*row)
	if err != nil {
		return err
	}
	for _, c := range commands {
		j.queued = append(j.queued, command{index: c.Index, number: 1})
	}
	j.left = len(commands)
	s.mu.Lock()
	s.active[j.id] = j // before others can find the row: Cancel needs it
	s.mu.Unlock()
	err = s.rows.InsertJob(ctx, *row, commands, s.admit)
	if err == nil {
		failpoint.Hit("jobs.create.recorded")
		s.publish(j, "created", "")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err != nil:
		delete(s.active, j.id)
	case s.active[j.id] == j: // otherwise it was cancelled and has ended
		s.order = append(s.order, j)
		s.signal()
	}
	return err
}

// admit returns an error if a caller with that many jobs may not create one.
func (s *Service) admit(active, kept int) error {
	l := s.opts.Limits
	switch {
	case active >= l.Active:
		return usererror.Errorf(errdefs.ErrResourceExhausted,
			"caller has %d jobs that have not ended, which is the limit: wait for one, or cancel one", active)
	case kept >= l.Kept:
		return usererror.Errorf(errdefs.ErrResourceExhausted,
			"caller has %d jobs, which is the limit: remove ended ones", kept)
	}
	return nil
}

// find returns a job of the caller. Operators find every job.
func (s *Service) find(ctx context.Context, p caller.Principal, id string) (store.Job, error) {
	row, err := s.rows.Job(ctx, id)
	if errdefs.IsNotFound(err) || err == nil && row.Caller != p.Caller && !p.Operator {
		return store.Job{}, usererror.Errorf(errdefs.ErrNotFound, "job %q not found", id)
	}
	return row, err
}

// List lists the caller's jobs, newest first. With all, which is for operators, it lists every job.
func (s *Service) List(ctx context.Context, p caller.Principal, all bool) ([]v1.Job, error) {
	owner := p.Caller
	if all {
		if err := p.Operate("see what others have"); err != nil {
			return nil, err
		}
		owner = ""
	}
	rows, err := s.rows.List(ctx, owner, core.MaxListed)
	if err != nil {
		return nil, err
	}
	out := make([]v1.Job, 0, len(rows))
	for _, row := range rows {
		j, err := s.present(ctx, row)
		if err != nil {
			return nil, err
		}
		out = append(out, j)
	}
	return out, nil
}

// Get describes a job. With wait, it first waits for the job's end for up to that time.
func (s *Service) Get(ctx context.Context, p caller.Principal, id string, wait time.Duration) (v1.Job, error) {
	if wait < 0 || wait > maxWait {
		return v1.Job{}, usererror.Invalid("wait_ms", "is %d: from 0 to %d", wait.Milliseconds(), maxWait.Milliseconds())
	}
	j := s.activeJob(id) // looked up first: a row read before could miss an end that comes in between
	row, err := s.find(ctx, p, id)
	if err != nil {
		return v1.Job{}, err
	}
	if j != nil && wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-j.done:
		case <-t.C:
		case <-ctx.Done():
			return v1.Job{}, context.Cause(ctx)
		}
		if row, err = s.find(ctx, p, id); err != nil {
			return v1.Job{}, err
		}
	}
	return s.present(ctx, row)
}

// maxWait bounds how long a request waits for a job or its output.
const maxWait = time.Minute

// Results returns up to limit commands of a job, from the index from on.
func (s *Service) Results(ctx context.Context, p caller.Principal, id string, from, limit int) ([]v1.JobResult, error) {
	if _, err := s.find(ctx, p, id); err != nil {
		return nil, err
	}
	if limit <= 0 || limit > core.MaxListed {
		limit = core.MaxListed
	}
	rows, err := s.rows.JobCommands(ctx, id, from, limit)
	if err != nil {
		return nil, err
	}
	out := make([]v1.JobResult, 0, len(rows))
	held := s.held(id)
	for _, row := range rows {
		r, err := presentCommand(row)
		if err != nil {
			return nil, err
		}
		if held[row.Index] && row.State == store.JobQueued {
			r.QueuedBy = queuedByCluster
		}
		out = append(out, r)
	}
	return out, nil
}

// Cancel stops a job: queued commands end without having run, and running ones are killed. It does
// not wait for them. Cancelling an ended job changes nothing.
func (s *Service) Cancel(ctx context.Context, p caller.Principal, id string) (v1.Job, error) {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return v1.Job{}, err
	}
	if j := s.activeJob(id); j != nil {
		if err := s.stopJob(ctx, j, stopCancelled); err != nil {
			return v1.Job{}, err
		}
	}
	if row, err = s.find(ctx, p, row.ID); err != nil {
		return v1.Job{}, err
	}
	return s.present(ctx, row)
}

// Remove removes an ended job with its results, output and artifacts.
func (s *Service) Remove(ctx context.Context, p caller.Principal, id string) error {
	row, err := s.find(ctx, p, id)
	if err != nil {
		return err
	}
	if row.Ended.IsZero() {
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "job %s has not ended: cancel it first", id)
	}
	return s.remove(ctx, row)
}

func (s *Service) activeJob(id string) *job {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.active[id]
}

// findCommand returns a command of a job of the caller.
func (s *Service) findCommand(ctx context.Context, p caller.Principal, id string, index int) (store.JobCommand, error) {
	if _, err := s.find(ctx, p, id); err != nil {
		return store.JobCommand{}, err
	}
	c, err := s.rows.JobCommand(ctx, id, index)
	if errdefs.IsNotFound(err) {
		return c, usererror.Errorf(errdefs.ErrNotFound, "command %d of job %s not found", index, id)
	}
	return c, err
}

func milliseconds(n int64) time.Duration { return time.Duration(n) * time.Millisecond }

// attemptID is the id of an attempt in its sandbox.
func attemptID(job string, index, attempt int) string {
	return fmt.Sprintf("%s.%d.%d", job, index, attempt)
}
