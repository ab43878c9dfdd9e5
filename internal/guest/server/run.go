package server

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// killTime bounds how long a kill may take before the sandbox is called
// unclean: what is still alive then does not die.
const killTime = 10 * time.Second

// run is one command, from the moment that it counts until its ending.
type run struct {
	s       *Server
	id      string
	cmd     wire.Command
	sp      *spare
	started time.Time
	timer   *time.Timer
	pumps   sync.WaitGroup
	outputs []*pump
	term    *terminal    // nil: it has pipes
	before  cgroup.Usage // of all commands together
	wasFull []string     // places without room then
	begun   int64        // s.starts when it began
	alone   bool         // nothing else ran then
	warm    bool         // nobody had claimed the sandbox then

	stopped chan struct{} // closed by the first stop

	mu     sync.Mutex
	cause  runtime.Ending // why it is to end, "" while it is not
	ended  bool           // its leader has ended, without a cause of ours
	killed bool           // stopped is closed
	over   bool           // its leader has been reaped, or given up
}

// begin counts a command in and takes a spare for it. Its id is unique among
// those that run; an empty one is replaced.
func (s *Server) begin(cmd wire.Command) (*run, error) {
	r := &run{s: s, cmd: cmd, stopped: make(chan struct{})}
	if err := s.countIn(r); err != nil {
		return nil, err
	}
	sp, err := s.yard.take()
	if err != nil {
		s.countOut(r)
		return nil, err
	}
	if err := sp.limit(&cmd); err != nil {
		sp.discard(s.Log)
		s.countOut(r)
		return nil, err
	}
	r.mu.Lock()
	r.sp = sp // stop may be called already
	r.mu.Unlock()
	return r, nil
}

func (s *Server) countIn(r *run) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return wire.Failf(wire.Unavailable, "", "the sandbox is ending")
	}
	if len(s.running) >= MaxCommands {
		return wire.Failf(wire.ResourceExhausted, "", "%d commands are running, no more are allowed", MaxCommands)
	}
	if r.id = r.cmd.ID; r.id == "" {
		s.nextName++
		r.id = "." + strconv.FormatInt(s.nextName, 10)
	}
	if _, ok := s.running[r.id]; ok {
		return wire.Failf(wire.AlreadyExists, "id", "a command %q is running", r.id)
	}
	r.alone = len(s.running) == 0
	s.running[r.id] = r
	s.starts++
	r.begun = s.starts
	r.warm = s.lease == ""
	s.work.Add(1)
	return nil
}

func (s *Server) countOut(r *run) {
	s.mu.Lock()
	delete(s.running, r.id)
	s.mu.Unlock()
	s.work.Done()
}

// launch makes the leader the command. A *wire.Failure: it could not be
// executed, and nothing of it is left.
func (r *run) launch(p *prefork.Program) error {
	sp := r.sp
	p.Groups = sp.groups
	r.mu.Lock()
	r.started = time.Now()
	r.mu.Unlock()
	if r.cmd.Timeout > 0 {
		r.timer = time.AfterFunc(r.cmd.Timeout, func() { r.stop(runtime.Timeout) })
	}
	r.before = r.s.yard.maker.counters()
	r.wasFull = r.s.diskFull()
	refusal := r.s.decide(&r.cmd, p)
	if refusal == nil && r.cmd.TTY != nil {
		refusal = r.onTerminal(p)
	}
	if refusal == nil && r.cmd.Program != "" {
		if refusal = r.s.openProgram(&r.cmd, p); refusal == nil {
			defer p.File.Close()
		}
	}
	if refusal == nil {
		refusal = r.s.bound(sp.leader.Pid)
	}
	var err error
	if refusal == nil {
		err = sp.leader.Exec(p, r.stdio())
	}
	sp.handOver()
	if refusal == nil && (err == nil || errors.Is(err, prefork.ErrInterrupted)) {
		return nil
	}
	r.kill(nil)
	r.closeStreams()
	r.leave()
	if refusal != nil {
		return refusal
	}
	if step, ok := errors.AsType[*prefork.StepError](err); ok {
		return stepFailure(step, &r.cmd)
	}
	return wire.Failf(wire.Internal, "", "start the command: %v", err)
}

// stdio are the descriptors that the command gets as 0, 1 and 2.
func (r *run) stdio() [3]int {
	if r.term != nil {
		return [3]int{r.term.slave, r.term.slave, r.term.slave}
	}
	fd := [3]int{int(r.s.null.Fd()), r.sp.out.theirs, r.sp.err.theirs}
	if r.cmd.Stdin {
		fd[0] = r.sp.in.theirs
	}
	if r.cmd.MergeStderr {
		fd[2] = r.sp.out.theirs
	}
	return fd
}

func (r *run) closeStreams() {
	r.sp.closePipes()
	if r.term != nil {
		r.term.close()
	}
}

// pump starts moving output. Call it after launch, and wait after that.
func (r *run) pump(stdout, stderr sink) {
	for _, p := range []*pump{
		{file: r.sp.out.ours, sink: stdout, limit: r.cmd.OutputLimit, terminal: r.term != nil},
		{file: r.sp.err.ours, sink: stderr, limit: r.cmd.OutputLimit},
	} {
		p.over = func() { r.stop(runtime.OutputLimit) }
		p.lost = func() { r.stop(runtime.SandboxLost) }
		r.outputs = append(r.outputs, p)
		r.pumps.Go(p.run)
	}
}

// told says whether the command's last words were that there is no room; ask
// once the pumps are done.
func (r *run) told() bool {
	for _, p := range r.outputs {
		if told(p.last) {
			return true
		}
	}
	return false
}

// stop ends the command for a reason of ours; the first one counts. It does
// not wait. SandboxLost is for what nobody is seen to ask for: the stream to the
// host ended or broke, or this guest is ending. A host that gave the command up
// ended the stream itself, and names that better.
func (r *run) stop(cause runtime.Ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.note(cause)
	if !r.killed {
		r.killed = true
		close(r.stopped)
	}
	if r.sp != nil {
		r.sp.leader.Interrupt()
	}
}

// blame notes why the command ends before it is asked to end by itself.
func (r *run) blame(cause runtime.Ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.note(cause)
	}
}

// note is to be called with the lock held. What comes after a command has ended
// by itself did not end it, also while a tracer keeps that end from the guest;
// that it wrote more than it may can still turn out.
func (r *run) note(cause runtime.Ending) {
	if r.cause == "" && (cause == runtime.OutputLimit || !r.ended && !r.dead()) {
		r.cause = cause
	}
}

// dead says whether the command's leader is dead, reaped or not.
func (r *run) dead() bool {
	if r.sp == nil {
		return false
	}
	dead, _ := ended(r.sp.leader.Pid)
	return dead
}

// left notes that the leader has ended.
func (r *run) left() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = r.cause == ""
}

// signal sends a signal to the leader or to all; NotFound if it has ended.
func (r *run) signal(n int, all bool) error {
	if n < 1 || n > 64 {
		return wire.Failf(wire.InvalidArgument, "number", "must be from 1 to 64")
	}
	sig := syscall.Signal(n)
	r.mu.Lock()
	over := r.over || r.started.IsZero()
	r.mu.Unlock()
	if over {
		return wire.Failf(wire.NotFound, "id", "the command has ended")
	}
	var err error
	if all {
		err = r.sp.group.Signal(sig)
	} else {
		err = r.sp.leader.Signal(sig)
	}
	if errors.Is(err, syscall.ESRCH) {
		return wire.Failf(wire.NotFound, "id", "the command has ended")
	}
	return err
}

// wait returns when the command has ended and everything of it is dead, and
// what it wrote was handed to the sinks. Call it once. onEnd is called
// between the two.
func (r *run) wait(onEnd func()) runtime.Result {
	var exit *prefork.Exit
	select {
	case e := <-r.sp.leader.Exit:
		exit = &e
		r.left()
	case <-r.stopped:
	}
	exit, clean := r.kill(exit)
	took := time.Since(r.started)
	if onEnd != nil {
		onEnd()
	}
	r.drain()
	res := r.result(exit)
	res.Duration = took
	if !clean {
		res.Unclean = true
		res.Detail = "not every process of the command was seen dead"
	}
	r.leave()
	return res
}

// kill kills everything and reaps the leader, unless that has ended as exit
// says. It returns its end, nil if that was not seen, and whether all are dead.
func (r *run) kill(exit *prefork.Exit) (*prefork.Exit, bool) {
	if r.timer != nil {
		defer r.timer.Stop()
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), killTime, errors.New("gave up waiting for processes to die"))
	defer cancel()
	if exit == nil {
		_ = r.sp.leader.Signal(syscall.SIGKILL) // it may not be in the group yet; gone is fine
	}
	err := r.sp.group.Kill(ctx)
	if err != nil {
		r.s.Log.Error("a command was not killed", "command", r.id, "error", err)
	}
	if exit == nil {
		exit = r.leaderEnd(ctx)
	}
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.s.reaper.Settle()
	return exit, err == nil && exit != nil
}

// leaderEnd waits for the end of a leader that was killed, until ctx ends. If a tracer keeps it, the tracer is killed.
func (r *run) leaderEnd(ctx context.Context) *prefork.Exit {
	tick := time.NewTicker(traceTime)
	defer tick.Stop()
	for {
		select {
		case e := <-r.sp.leader.Exit:
			return &e
		case <-tick.C:
			r.s.release(r.sp.leader.Pid)
		case <-ctx.Done():
			return nil
		}
	}
}

// drain takes what the pipes still hold.
func (r *run) drain() {
	past := time.Unix(1, 0)
	for _, p := range []*pipe{&r.sp.out, &r.sp.err} {
		p.ours.SetReadDeadline(past) //nolint:errcheck // a closed one has nothing to read
	}
	r.pumps.Wait()
	r.closeStreams()
}

// leave counts the command out, and removes its group when there is time.
func (r *run) leave() {
	s := r.s
	s.work.Go(func() {
		if err := r.sp.group.Remove(); err != nil {
			s.Log.Warn("group was not removed", "command", r.id, "error", err)
		}
		s.yard.wake()
	})
	s.countOut(r)
}
