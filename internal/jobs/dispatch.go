package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// job is a job that has not ended. The service's mu guards the fields below the line.
type job struct {
	id, caller string
	principal  caller.Principal
	request    v1.JobRequest
	space      *space
	deadline   time.Time
	ctx        context.Context // ends when the job is stopped
	cancel     context.CancelFunc
	done       chan struct{} // closed when the job has ended

	// ----
	queued    []command
	resumed   []store.JobCommand // commands that an earlier process started
	running   int
	left      int       // commands that have not ended
	stopped   string    // why no further command starts, or ""
	notBefore time.Time // no command starts before
	waiting   string    // why commands wait, or ""
	// held has the commands that wait in the cluster's queue, with the reason.
	held  map[int]string
	begun bool // a command has started
	// changed has a channel for each command that requests wait for. It is closed when the command
	// starts or ends.
	changed   map[int]chan struct{}
	finishing bool
}

// command is a queued command of a job.
type command struct {
	index     int
	number    int // of its next attempt
	setups    int // how often its sandbox was lost before that attempt started
	postponed int // how often that attempt got no sandbox
}

// Reasons to stop a job, as stored.
const (
	stopCancelled = "cancelled"
	stopDeadline  = "deadline"
	stopToken     = "token"
)

// stopDetail describes why a job was stopped.
func stopDetail(why string) string {
	switch why {
	case stopDeadline:
		return "the job's deadline passed"
	case stopToken:
		return "the token that created the job was revoked or has expired"
	}
	return "the job was cancelled"
}

// Times of the dispatcher.
const (
	retryPause    = time.Second      // before a command that got no sandbox is tried again
	maxRetryPause = 30 * time.Second // the same, after several attempts to get one from the cluster
	failurePause  = time.Second      // before the store is tried again
	sweepInterval = time.Minute      // removing expired jobs
)

// newJob returns a job without its commands.
func (s *Service) newJob(row store.Job) (*job, error) {
	j := &job{
		id: row.ID, caller: row.Caller, space: s.callerSpace(row.Caller), deadline: row.Deadline, stopped: row.Stopped,
		done: make(chan struct{}), changed: map[int]chan struct{}{}, held: map[int]string{},
	}
	err := json.Unmarshal(row.Principal, &j.principal) //nolint:musttag // only this package reads it
	if err := errors.Join(err, json.Unmarshal(row.Request, &j.request)); err != nil {
		return nil, err
	}
	j.ctx, j.cancel = context.WithCancel(context.Background())
	if j.stopped != "" {
		j.cancel()
	}
	return j, nil
}

// load returns the job of a row with its commands.
func (s *Service) load(ctx context.Context, row store.Job) (*job, error) {
	j, err := s.newJob(row)
	if err != nil {
		return nil, err
	}
	rows, err := s.rows.JobCommands(ctx, j.id, 0, -1) // all: the limit may be lower now
	if err != nil {
		return nil, err
	}
	for _, c := range rows {
		j.begun = j.begun || c.State != store.JobQueued || c.Attempt > 1
		switch c.State {
		case store.JobQueued:
			j.queued = append(j.queued, command{index: c.Index, number: c.Attempt})
		case store.JobStarted:
			j.resumed = append(j.resumed, c)
		default: // it has ended
			continue
		}
		j.left++
	}
	if j.stopped != "" { // finish ends their rows
		j.left -= len(j.queued)
		j.queued = nil
	}
	return j, nil
}

// add makes a job active.
func (s *Service) add(j *job) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.active[j.id] = j
	s.order = append(s.order, j)
	s.signal()
}

// signal wakes the dispatcher.
func (s *Service) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Recover reads the jobs of an earlier process, and ends the leases of attempts that it did not
// record as started or has recorded as ended. It must be called once, after the scheduler's Recover
// and before Run.
func (s *Service) Recover(ctx context.Context) error {
	if s.opts.Dir == "" {
		return nil
	}
	known, err := s.rows.JobSizes(ctx)
	if err != nil {
		return err
	}
	if err := s.recoverFiles(known); err != nil {
		return err
	}
	rows, err := s.rows.ActiveJobs(ctx)
	if err != nil {
		return err
	}
	live, err := s.opts.Store.Live(ctx)
	if err != nil {
		return err
	}
	started := map[string]string{} // sandboxes by attempt
	queued := map[string]bool{}    // attempts of native commands that have not started
	for _, row := range rows {
		j, err := s.load(ctx, row)
		if err != nil {
			return err
		}
		for _, c := range j.resumed {
			started[attemptID(j.id, c.Index, c.Attempt)] = c.Sandbox
		}
		for _, c := range j.queued {
			queued[attemptID(j.id, c.index, c.number)] = j.request.Native
		}
		j.heldFirst(live)
		s.add(j)
	}
	if err := s.opts.Scheduler.WithdrawQueued(ctx, func(attempt string) bool { return queued[attempt] }); err != nil {
		return err
	}
	for _, row := range live {
		if row.Lease.Attempt == "" || started[row.Lease.Attempt] == row.ID {
			continue
		}
		if l := s.opts.Scheduler.Live(row.ID); l != nil {
			s.endLease(ctx, l, scheduler.Finished, false)
		}
	}
	return nil
}

// Run starts commands until ctx ends. Running commands go on in their sandboxes, and the next
// process continues with them.
func (s *Service) Run(ctx context.Context) error {
	if s.opts.Dir == "" {
		<-ctx.Done()
		return nil
	}
	s.mu.Lock()
	s.ctx = ctx
	for _, j := range s.order {
		for _, c := range j.resumed {
			s.count(j, 1)
			s.work.Go(func() { s.resume(j, c) })
		}
		j.resumed = nil
		s.checkDone(j)
	}
	s.mu.Unlock()
	defer s.waitWork()
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	s.sweep(ctx)
	for {
		next := s.dispatch(ctx)
		t := time.NewTimer(time.Until(next))
		select {
		case <-s.wake:
		case <-t.C:
		case <-sweep.C:
			s.sweep(ctx)
		case <-ctx.Done():
			t.Stop()
			return nil
		}
		t.Stop()
	}
}

// waitWork waits for the goroutines that Run and Cancel started.
func (s *Service) waitWork() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
}

// dispatch stops jobs whose deadline has passed and starts as many commands as it may. It returns
// when it has to be called again at the latest.
func (s *Service) dispatch(ctx context.Context) (again time.Time) {
	now := time.Now()
	again = now.Add(sweepInterval)
	s.mu.Lock()
	var late []*job
	for _, j := range s.order {
		switch {
		case j.stopped != "":
		case !now.Before(j.deadline):
			late = append(late, j)
		default:
			if j.deadline.Before(again) {
				again = j.deadline
			}
			if j.notBefore.After(now) && j.notBefore.Before(again) {
				again = j.notBefore
			}
		}
	}
	s.mu.Unlock()
	for _, j := range late {
		if err := s.stopJob(ctx, j, stopDeadline); err != nil {
			s.log.Error("failed to stop a job at its deadline; will retry", "job", j.id, "error", err)
			again = now.Add(failurePause)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		j := s.next(now)
		if j == nil {
			return again
		}
		c := j.queued[0]
		j.queued = j.queued[1:]
		s.count(j, 1)
		s.turn++
		s.turns[j.caller] = s.turn
		s.work.Go(func() { s.run(j, c) })
	}
}

// next returns the job whose command starts next, or nil: the oldest one that may start a command,
// of the caller with the fewest running commands of its kind, or of several, the one who was served
// least recently. The caller holds mu.
func (s *Service) next(now time.Time) *job {
	ordinary, native := map[string]int{}, map[string]int{}
	ofKind := func(j *job) map[string]int {
		if j.request.Native {
			return native
		}
		return ordinary
	}
	for _, j := range s.order {
		ofKind(j)[j.caller] += j.running
	}
	var best *job
	least := 0
	for _, j := range s.order {
		if len(j.queued) == 0 || j.stopped != "" || j.running >= j.request.Parallelism || j.notBefore.After(now) ||
			s.full(j, native[j.caller]) {
			continue
		}
		most := s.opts.Callers.SandboxQuotas(j.principal).Sandboxes
		if most > 0 && ordinary[j.caller]+native[j.caller] >= most {
			continue // more would only wait, and hold the places of others
		}
		n := ofKind(j)[j.caller]
		if best == nil || n < least || n == least && s.turns[j.caller] < s.turns[best.caller] {
			best, least = j, n
		}
	}
	return best
}

// stopJob ends the queued commands of a job and kills the running ones, in the background.
func (s *Service) stopJob(ctx context.Context, j *job, why string) error {
	if err := s.rows.StopJob(ctx, j.id, why); err != nil {
		return err
	}
	failpoint.Hit("jobs.stop.recorded")
	s.mu.Lock()
	defer s.mu.Unlock()
	if j.stopped != "" {
		return nil
	}
	j.stopped = why
	s.publish(j, "stopping", stopDetail(why))
	j.cancel()
	j.left -= len(j.queued)
	j.queued = nil // finish ends their rows
	s.checkDone(j)
	return nil
}

// checkDone ends a job whose commands have ended. The caller holds mu.
func (s *Service) checkDone(j *job) {
	if j.left > 0 || j.finishing || s.ctx == nil || s.closed {
		return
	}
	j.finishing = true
	s.work.Go(func() { s.finish(j) })
}

// finish records the end of a job. It tries again until it succeeds or the service stops.
func (s *Service) finish(j *job) {
	for {
		ending, err := s.recordEnd(j)
		if err == nil {
			s.publish(j, "ended", ending)
			break
		}
		s.log.Error("failed to record the end of a job; will retry", "job", j.id, "error", err)
		if !s.pause(failurePause) {
			return
		}
	}
	j.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, j.id)
	s.order = slices.DeleteFunc(s.order, func(o *job) bool { return o == j })
	if !slices.ContainsFunc(s.order, func(o *job) bool { return o.caller == j.caller }) {
		delete(s.turns, j.caller)
	}
	for index := range j.changed {
		j.notify(index)
	}
	close(j.done)
	s.signal()
}

// recordEnd records the end of a job and returns its ending. A stop that comes later does not
// change the recorded reason.
func (s *Service) recordEnd(j *job) (ending string, err error) {
	stopped := s.stoppedBy(j)
	if stopped != "" {
		if err := s.rows.EndQueuedJobCommands(s.ctx, j.id, outcomeCancelled); err != nil {
			return "", err
		}
		failpoint.Hit("jobs.stop.ended")
	}
	counts, err := s.rows.CountJobCommands(s.ctx, j.id)
	if err != nil {
		return "", err
	}
	summary, err := json.Marshal(presentCounts(counts))
	if err != nil {
		return "", err
	}
	now, ending := time.Now(), endingOf(stopped, counts)
	if err := s.rows.EndJob(s.ctx, store.Job{
		ID: j.id, Stopped: stopped, Ending: ending, Counts: summary, Ended: now,
		Expires: now.Add(milliseconds(j.request.TTLMS)),
	}); err != nil {
		return "", err
	}
	failpoint.Hit("jobs.end.recorded")
	return ending, nil
}

// pause waits, and reports false if the service stops.
func (s *Service) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// notify wakes requests that wait for a command of the job. The caller holds mu.
func (j *job) notify(index int) {
	if c := j.changed[index]; c != nil {
		close(c)
		delete(j.changed, index)
	}
}

// sweep removes jobs that have expired.
func (s *Service) sweep(ctx context.Context) {
	rows, err := s.rows.ExpiredJobs(ctx, time.Now())
	if err != nil {
		s.log.Error("failed to list expired jobs; will retry", "error", err)
		return
	}
	for _, row := range rows {
		if err := s.remove(ctx, row); err != nil {
			s.log.Error("failed to remove an expired job; will retry", "job", row.ID, "error", err)
		}
	}
}

// remove removes an ended job. Its row goes first: files without a row are removed at the next
// start.
func (s *Service) remove(ctx context.Context, row store.Job) error {
	if err := s.rows.DeleteJob(ctx, row.ID); err != nil {
		return err
	}
	failpoint.Hit("jobs.remove.forgotten")
	return s.removeFiles(row.Caller, row.ID)
}
