package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// attempt is one attempt of a command.
type attempt struct {
	*job
	command
	exec    v1.Exec
	lease   *scheduler.Lease
	started time.Time
	resumed bool // an earlier process started it
	// known is set once the sandbox has shown that it received the command.
	known atomic.Bool
}

func (a *attempt) name() string { return attemptID(a.id, a.index, a.number) }

// Times of an attempt.
const (
	killGrace  = 2 * time.Second
	leaseExtra = 10 * time.Minute       // of a lease beyond the command's timeout
	askPause   = 200 * time.Millisecond // before a sandbox is asked again
	maxAsks    = 50                     // failed questions before a sandbox is given up
	endTime    = 30 * time.Second       // for the end of a lease that the next command needs
	maxSetups  = 3                      // sandboxes that may be lost before a command is not_run
)

var (
	errNeverRan = errors.New("the sandbox never received the command")
	errStopping = errors.New("the service is stopping")
	// errStore marks a failure of the database before a command has started.
	errStore = errors.New("the database failed")
)

// run runs the next attempt of a queued command.
func (s *Service) run(j *job, c command) {
	defer s.leave(j, c.index)
	a := &attempt{job: j, command: c}
	err := s.prepare(a)
	if err == nil {
		err = s.start(a)
	}
	if err != nil {
		if a.lease != nil {
			s.endLease(s.ctx, a.lease, scheduler.Abandoned, j.writes())
		}
		s.notStarted(a, err)
		return
	}
	s.conclude(a)
}

// resume continues with an attempt that an earlier process started.
func (s *Service) resume(j *job, c store.JobCommand) {
	defer s.leave(j, c.Index)
	a := &attempt{job: j, command: command{index: c.Index, number: c.Attempt}, started: c.Started, resumed: true}
	body, err := s.rows.JobCommandExec(s.ctx, j.id, c.Index)
	if err == nil {
		err = json.Unmarshal(body, &a.exec)
	}
	if err != nil && s.ctx.Err() == nil { // it runs, and only the bound of its output is missing
		s.log.Error("failed to read a job's command", "job", j.id, "command", c.Index, "error", err)
	}
	a.lease = s.opts.Scheduler.Live(c.Sandbox)
	if a.lease == nil {
		res := s.lost(a, "its sandbox is gone since the service stopped")
		s.closeOutputs(a, &res)
		s.record(a, c.Sandbox, res)
		return
	}
	s.conclude(a)
}

// leave ends the work on a command.
func (s *Service) leave(j *job, index int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(j, -1)
	j.notify(index)
	s.signal()
}

// writes reports whether the job's sandboxes write to a workspace, so that only one can have it.
func (j *job) writes() bool {
	r := j.request
	return r.Workspace != "" && !r.ReadOnly && r.Mode != "ro"
}

// prepare leases the sandbox of an attempt and writes the input files.
func (s *Service) prepare(a *attempt) error {
	if err := s.checkToken(a.job); err != nil {
		return err
	}
	body, err := s.rows.JobCommandExec(s.ctx, a.id, a.index)
	if err != nil {
		return errors.Join(errStore, err)
	}
	if err := json.Unmarshal(body, &a.exec); err != nil {
		return err
	}
	c, err := s.command(a)
	if err != nil {
		return err
	}
	ctx, cancel := s.both(a.ctx)
	defer cancel()
	r := leaseRequest(&a.request)
	r.TTLMS = min(c.Timeout+leaseExtra, s.opts.MaxTTL).Milliseconds()
	a.lease, err = s.opts.Sandboxes.Acquire(ctx, a.principal, r, core.Acquisition{Attempt: a.name(), Queued: s.queued(a)})
	s.hold(a, "")
	if err != nil {
		return err
	}
	failpoint.Hit("jobs.attempt.leased")
	use, err := a.lease.Enter(ctx)
	if err != nil {
		return err
	}
	defer use.Leave()
	for i, f := range a.request.Files {
		body, err := s.readInput(a.id, i)
		if err != nil {
			return err
		}
		mode, err := modeOf(f)
		if err != nil {
			return err
		}
		q := wire.FileRequest{Path: f.Path, Mode: mode, Recursive: true, Size: body.Size()}
		if _, err := use.WriteFile(use.Ctx, q, body); err != nil {
			return a.lease.Explain(err)
		}
	}
	return nil
}

// checkToken stops a job whose token is no longer valid, and returns an error then.
func (s *Service) checkToken(j *job) error {
	if id := j.principal.Token; id == "" || s.opts.Callers.Valid(id) {
		return nil
	}
	if err := s.stopJob(s.ctx, j, stopToken); err != nil {
		return errors.Join(errStore, err)
	}
	return context.Canceled
}

// both returns a context that ends with ctx or with Run.
func (s *Service) both(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// command returns the guest's form of an attempt's command.
func (s *Service) command(a *attempt) (wire.Command, error) {
	x := a.exec
	x.Env = maps.Clone(x.Env)
	if x.Env == nil {
		x.Env = map[string]string{}
	}
	x.Env["ORCHESTRATOR_JOB"] = a.id
	x.Env["ORCHESTRATOR_JOB_COMMAND"] = strconv.Itoa(a.index)
	x.Env["ORCHESTRATOR_JOB_ATTEMPT"] = strconv.Itoa(a.number)
	c, err := s.opts.Sandboxes.Command(a.name(), x)
	c.Wait = true // no output is lost while the service restarts
	return c, err
}

// start records that the attempt may run from now on, and then sends it to the sandbox. An error
// means that it did not run and never will.
func (s *Service) start(a *attempt) error {
	if err := s.checkToken(a.job); err != nil { // the sandbox may have taken long
		return err
	}
	c, err := s.command(a)
	if err != nil {
		return err
	}
	now := time.Now()
	ok, err := s.rows.StartJobCommand(s.ctx, a.id, a.index, a.number, a.lease.ID, now)
	if err != nil {
		return errors.Join(errStore, err)
	}
	if !ok {
		return s.refused(a)
	}
	a.started = now
	failpoint.Hit("jobs.attempt.started")
	s.mu.Lock()
	a.waiting = ""
	if !a.begun {
		a.begun = true
		s.publish(a.job, "running", "")
	}
	a.notify(a.index)
	s.mu.Unlock()
	ctx, cancel := s.both(context.Background())
	defer cancel()
	use, err := a.lease.Enter(ctx)
	if err != nil {
		return nil // conclude finds out what happened to the lease
	}
	defer use.Leave()
	_, err = s.opts.Sandboxes.Start(use, c, a.exec.Command != "")
	failpoint.Hit("jobs.attempt.sent")
	if refused, ok := errors.AsType[*guest.Error](err); ok {
		return refused
	}
	return nil // if the answer was lost, conclude asks the sandbox
}

// refused returns the error of an attempt that the database did not let start. If the job was
// stopped there, it first waits until stopJob has told the reason.
func (s *Service) refused(a *attempt) error {
	row, err := s.rows.Job(s.ctx, a.id)
	if err != nil {
		return errors.Join(errStore, err)
	}
	if row.Stopped != "" {
		select {
		case <-a.ctx.Done():
		case <-s.ctx.Done():
		}
	}
	return context.Canceled
}

// notStarted handles an attempt that did not run.
func (s *Service) notStarted(a *attempt, err error) {
	if s.ctx.Err() != nil {
		return // the next process runs it
	}
	if s.waits(a, err) && s.postpone(a, explain(err)) {
		return
	}
	if stopped := s.stoppedBy(a.job); stopped != "" {
		s.record(a, "", v1.ExecResult{
			Ending: string(runtime.Cancelled), ExitCode: -1, Detail: stopDetail(stopped) + " before it started",
		})
		return
	}
	s.log.Warn("a job's command could not start", "job", a.id, "command", a.index, "error", err)
	s.record(a, "", v1.ExecResult{Ending: string(notRun), ExitCode: -1, Detail: explain(err)})
}

// waits reports whether an attempt that did not start is tried again under the same number: it got
// no sandbox, or the database failed, or its sandbox was lost before, which is bounded.
func (s *Service) waits(a *attempt, err error) bool {
	switch {
	case !a.started.IsZero():
		return false
	case errors.Is(err, errStore):
		s.log.Error("failed to start a job's command; will retry", "job", a.id, "command", a.index, "error", err)
		return true
	case a.lease == nil:
		return errdefs.IsUnavailable(err) || errdefs.IsResourceExhausted(err)
	}
	a.setups++
	return a.setups < maxSetups && errdefs.IsUnavailable(err)
}

// postpone queues an attempt that got no sandbox, or reports false if the job was stopped.
func (s *Service) postpone(a *attempt, why string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.stopped != "" {
		return false
	}
	a.postponed++
	a.notBefore, a.waiting = time.Now().Add(pauseOf(a.request.Native, a.postponed)), why
	a.queued = append([]command{a.command}, a.queued...)
	return true
}

// stoppedBy returns why a job was stopped, or "".
func (s *Service) stoppedBy(j *job) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return j.stopped
}

// explain returns the part of an error that its caller may see.
func explain(err error) string {
	if known := core.ForCallers(err); known != nil {
		return known.Error()
	}
	return "the service could not start it; its log says why"
}

// conclude waits for the end of a started attempt, records it and ends its lease.
func (s *Service) conclude(a *attempt) {
	r, err := s.await(a)
	switch {
	case errors.Is(err, errStopping):
		return // the command goes on, and the next process continues
	case errors.Is(err, errNeverRan):
		s.endLease(s.ctx, a.lease, scheduler.Abandoned, true)
		s.requeue(a)
		return
	}
	failpoint.Hit("jobs.attempt.ended")
	res := s.opts.Sandboxes.Present(a.name(), r)
	if why := s.stoppedBy(a.job); why != "" && r.Ending == runtime.Cancelled && r.Detail == "" {
		res.Detail = stopDetail(why)
	}
	if s.finalAttempt(a, res) {
		s.keepArtifacts(a, &res)
	}
	s.closeOutputs(a, &res)
	if a.request.Mode == "overlay" {
		res.Overlay = a.lease.ID
	}
	if !s.record(a, a.lease.ID, res) {
		return
	}
	failpoint.Hit("jobs.attempt.recorded")
	reason := scheduler.Finished
	if r.Unclean {
		reason = scheduler.Unclean
	}
	s.endLease(s.ctx, a.lease, reason, a.writes())
}

// endLease ends a lease. With wait it waits for the removal, so that the next command can have the
// workspace.
func (s *Service) endLease(ctx context.Context, l *scheduler.Lease, reason string, wait bool) {
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if err := s.opts.Scheduler.End(ctx, l, reason, wait); err != nil && ctx.Err() == nil {
		s.log.Warn("failed to end the lease of a job's command", "sandbox", l.ID, "error", err)
	}
}

// await copies the output of a started attempt until its end. Errors are errStopping and
// errNeverRan. An end that was not seen is a result.
func (s *Service) await(a *attempt) (runtime.Result, error) {
	for asks := 0; ; {
		r, err := s.follow(a)
		if err == nil {
			return r, nil
		}
		ended, gone := errors.AsType[*scheduler.EndedError](a.lease.Cause())
		switch {
		case s.ctx.Err() != nil:
			return r, errStopping
		case gone && ended.Reason != scheduler.Lost && ended.Reason != scheduler.Unclean && !a.resumed:
			return runtime.Result{Ending: runtime.Cancelled, ExitCode: -1, Duration: time.Since(a.started),
				Detail: ended.Error()}, nil
		case gone:
			return s.lostResult(a, ended.Error()), nil
		case errdefs.IsNotFound(err) && a.resumed && !a.known.Load():
			return r, errNeverRan
		case errdefs.IsNotFound(err): // somebody had the guest forget it
			asks = maxAsks
		case !errors.As(err, new(*enterError)): // until the engine reports the sandbox, keep waiting
			asks++
		}
		if asks >= maxAsks {
			s.log.Warn("gave up a sandbox that does not answer", "sandbox", a.lease.ID, "job", a.id, "error", err)
			s.endLease(s.ctx, a.lease, scheduler.Lost, false)
			return s.lostResult(a, "the connection to its sandbox was lost"), nil
		}
		if a.ctx.Err() != nil && asks > 0 {
			s.endLease(s.ctx, a.lease, scheduler.Removed, false)
		}
		if !s.pause(askPause) {
			return r, errStopping
		}
	}
}

// lostResult is the result of an attempt whose end was not seen.
func (*Service) lostResult(a *attempt, detail string) runtime.Result {
	r := runtime.Result{Ending: runtime.SandboxLost, ExitCode: -1, Duration: time.Since(a.started), Detail: detail}
	if a.resumed {
		r.Ending = unknown
	}
	return r
}

// lost is lostResult in its API form.
func (s *Service) lost(a *attempt, detail string) v1.ExecResult {
	return s.opts.Sandboxes.Present(a.name(), s.lostResult(a, detail))
}

// enterError reports that a lease cannot be used now.
type enterError struct{ error }

// Unwrap returns the lease's error.
func (e *enterError) Unwrap() error { return e.error }

// follow copies both streams of an attempt from where the files end, and returns its result. If the
// job is stopped, it kills the command.
func (s *Service) follow(a *attempt) (runtime.Result, error) {
	use, err := a.lease.Enter(s.ctx)
	if err != nil {
		return runtime.Result{}, &enterError{err}
	}
	defer use.Leave()
	killed := make(chan struct{})
	stop := context.AfterFunc(a.ctx, func() {
		defer close(killed)
		_, err := use.Kill(use.Ctx, wire.Kill{ID: a.name(), Grace: killGrace})
		if err != nil && !errdefs.IsNotFound(err) { // the guest hangs: the end of the lease ends the streams
			s.endLease(s.ctx, a.lease, scheduler.Removed, false)
		}
	})
	defer func() {
		if !stop() {
			<-killed // it uses the lease
		}
	}()
	var ends [2]wire.OutputEnd
	g, ctx := errgroup.WithContext(use.Ctx)
	for i, stream := range []wire.Stream{wire.Stdout, wire.Stderr} {
		g.Go(func() error {
			o, err := s.attemptOutput(a, stream)
			if err != nil {
				return err
			}
			ends[i], err = use.Output(ctx, wire.Output{ID: a.name(), Stream: stream, Offset: o.end(), Follow: true}, o.write)
			if err == nil || o.end() > 0 {
				a.known.Store(true)
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return runtime.Result{}, err
	}
	if r := ends[0].Shell.Result; r != nil {
		return *r, nil
	}
	return runtime.Result{}, errors.New("the output has ended without a result")
}

// attemptOutput returns the open output of a stream.
func (s *Service) attemptOutput(a *attempt, stream wire.Stream) (*output, error) {
	path := s.outputPath(a.id, a.index, a.number, string(stream))
	if o, live := s.liveOutput(path); live {
		return o, nil
	}
	size := a.exec.MaxOutputBytes
	if size == 0 {
		size = s.opts.MaxOutput
	}
	return s.openLive(a, path, max(size, 1))
}

// closeOutputs closes the outputs of an attempt and adds their lengths to the result, also those
// that only an earlier process has written.
func (s *Service) closeOutputs(a *attempt, res *v1.ExecResult) {
	for stream, n := range map[wire.Stream]*int64{wire.Stdout: &res.StdoutBytes, wire.Stderr: &res.StderrBytes} {
		o, err := s.attemptOutput(a, stream)
		if err != nil {
			s.log.Warn("failed to read the output of a job's command", "job", a.id, "command", a.index, "error", err)
			continue
		}
		*n = o.end()
		res.Truncated = res.Truncated || o.truncated()
		if err := s.closeLive(o); err != nil {
			s.log.Warn("failed to keep the output of a job's command", "job", a.id, "command", a.index, "error", err)
		}
	}
}
