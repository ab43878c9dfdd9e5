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

// killTime bounds a kill. If processes are still alive after it, the sandbox is reported as
// unclean.
const killTime = 10 * time.Second

// commandRun is one command from its registration to its ending.
type commandRun struct {
	s           *Server
	id          string
	cmd         wire.Command
	spare       *spare
	started     time.Time
	timer       *time.Timer
	pumps       sync.WaitGroup
	outputs     []*pump
	term        *terminal    // nil: the command has pipes
	before      cgroup.Usage // counters of all commands together at the start
	fullBefore  []string     // places without room at the start
	startSeq    int64        // value of s.startCount at the start
	alone       bool         // no other command ran at the start
	beforeClaim bool         // the sandbox was not claimed at the start

	stopped chan struct{} // closed by the first call of stop

	mu     sync.Mutex
	cause  runtime.Ending // why the guest ends it; "" if it does not
	ended  bool           // its first process ended on its own
	killed bool           // stopped is closed
	over   bool           // its first process was reaped, or the guest stopped waiting for it
}

// newRun registers a command and takes a spare process for it. The id must be unique among running
// commands; an empty id is replaced.
func (s *Server) newRun(cmd wire.Command) (*commandRun, error) {
	r := &commandRun{s: s, cmd: cmd, stopped: make(chan struct{})}
	if err := s.register(r); err != nil {
		return nil, err
	}
	sp, err := s.spares.acquire()
	if err != nil {
		s.unregister(r)
		return nil, err
	}
	if err := sp.limit(&cmd); err != nil {
		sp.discard(s.Log)
		s.unregister(r)
		return nil, err
	}
	r.mu.Lock()
	r.spare = sp // stop may run already
	r.mu.Unlock()
	return r, nil
}

func (s *Server) register(r *commandRun) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errShutDown()
	}
	if len(s.running) >= MaxCommands {
		return wire.Failf(wire.ResourceExhausted, "", "the limit of %d running commands is reached", MaxCommands)
	}
	if r.id = r.cmd.ID; r.id == "" {
		s.nextName++
		r.id = "." + strconv.FormatInt(s.nextName, 10)
	}
	if _, ok := s.running[r.id]; ok {
		return wire.Failf(wire.AlreadyExists, "id", "command %q is already running", r.id)
	}
	r.alone = len(s.running) == 0
	s.running[r.id] = r
	s.startCount++
	r.startSeq = s.startCount
	r.beforeClaim = s.lease == ""
	s.work.Add(1)
	return nil
}

func (s *Server) unregister(r *commandRun) {
	s.mu.Lock()
	delete(s.running, r.id)
	s.mu.Unlock()
	s.work.Done()
}

// launch makes the spare process the command. If it returns a *wire.Failure, the command did not
// run and nothing of it is left. If ctx ends during the call, the command is stopped.
func (r *commandRun) launch(ctx context.Context, p *prefork.Program) error {
	defer context.AfterFunc(ctx, func() { r.stop(runtime.SandboxLost) })()
	sp := r.spare
	p.Groups = sp.groups
	r.mu.Lock()
	r.started = time.Now()
	r.mu.Unlock()
	if r.cmd.Timeout > 0 {
		r.timer = time.AfterFunc(r.cmd.Timeout, func() { r.stop(runtime.Timeout) })
	}
	r.before = r.s.spares.maker.counters()
	r.fullBefore = r.s.fullPlaces()
	refusal := r.s.checkRules(ctx, &r.cmd, p)
	if refusal == nil && r.cmd.TTY != nil {
		refusal = r.attachTerminal(p)
	}
	if refusal == nil && r.cmd.Program != "" {
		if refusal = r.s.openProgram(&r.cmd, p); refusal == nil {
			defer p.File.Close()
		}
	}
	if refusal == nil {
		refusal = r.s.applyUlimits(sp.process.Pid)
	}
	if refusal == nil && ctx.Err() != nil {
		refusal = errShutDown()
	}
	var err error
	if refusal == nil {
		err = sp.process.Exec(p, r.stdio())
	}
	sp.closeTheirs()
	if refusal == nil && (err == nil || errors.Is(err, prefork.ErrInterrupted)) {
		return nil
	}
	r.kill(nil)
	r.closeStreams()
	r.release()
	if refusal != nil {
		return refusal
	}
	if step, ok := errors.AsType[*prefork.StepError](err); ok {
		return stepFailure(step, &r.cmd)
	}
	return wire.Failf(wire.Internal, "", "start the command: %v", err)
}

// stdio returns the command's descriptors 0, 1 and 2.
func (r *commandRun) stdio() [3]int {
	if r.term != nil {
		return [3]int{r.term.slave, r.term.slave, r.term.slave}
	}
	fd := [3]int{int(r.s.null.Fd()), r.spare.out.theirs, r.spare.err.theirs}
	if r.cmd.Stdin {
		fd[0] = r.spare.in.theirs
	}
	if r.cmd.MergeStderr {
		fd[2] = r.spare.out.theirs
	}
	return fd
}

func (r *commandRun) closeStreams() {
	r.spare.closePipes()
	if r.term != nil {
		r.term.close()
	}
}

// startPumps starts moving output. Call it after launch and before wait.
func (r *commandRun) startPumps(stdout, stderr sink) {
	for _, p := range []*pump{
		{file: r.spare.out.ours, sink: stdout, limit: r.cmd.OutputLimit, terminal: r.term != nil},
		{file: r.spare.err.ours, sink: stderr, limit: r.cmd.OutputLimit},
	} {
		p.onLimit = func() { r.stop(runtime.OutputLimit) }
		p.onError = func() { r.stop(runtime.SandboxLost) }
		r.outputs = append(r.outputs, p)
		r.pumps.Go(p.run)
	}
}

// saidDiskFull reports whether the output ended with a message for a full disk. Call it once the
// pumps are done.
func (r *commandRun) saidDiskFull() bool {
	for _, p := range r.outputs {
		if saysDiskFull(p.tail) {
			return true
		}
	}
	return false
}

// stop ends the command and records the cause; the first cause wins. It does not wait. SandboxLost
// means that no host asked for the end: the stream broke, or this guest is shutting down. A host
// that gave up closed the stream itself and reports a better cause.
func (r *commandRun) stop(cause runtime.Ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return
	}
	r.recordCause(cause)
	if !r.killed {
		r.killed = true
		close(r.stopped)
	}
	if r.spare != nil {
		r.spare.process.Interrupt()
	}
}

// setCause records why the command will end, before it is asked to exit.
func (r *commandRun) setCause(cause runtime.Ending) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.recordCause(cause)
	}
}

// recordCause sets the cause unless the command has already ended on its own, even if a tracer
// hides that end from the guest. An exceeded output limit can still be found later. r.mu must be
// held.
func (r *commandRun) recordCause(cause runtime.Ending) {
	if r.cause == "" && (cause == runtime.OutputLimit || !r.ended && !r.isDead()) {
		r.cause = cause
	}
}

// isDead reports whether the command's first process is dead, reaped or not.
func (r *commandRun) isDead() bool {
	if r.spare == nil {
		return false
	}
	dead, _ := processEnded(r.spare.process.Pid)
	return dead
}

// markEnded records that the first process has ended.
func (r *commandRun) markEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = r.cause == ""
}

// signal signals the first process or all processes of the command. It returns NotFound if the
// command has ended.
func (r *commandRun) signal(n int, all bool) error {
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
		err = r.spare.group.Signal(sig)
	} else {
		err = r.spare.process.Signal(sig)
	}
	if errors.Is(err, syscall.ESRCH) {
		return wire.Failf(wire.NotFound, "id", "the command has ended")
	}
	return err
}

// wait returns once the command has ended, all its processes are dead and its output was passed to
// the sinks. onEnd is called after the processes died and before the output is drained. Call wait
// once.
func (r *commandRun) wait(onEnd func()) runtime.Result {
	var exit *prefork.Exit
	select {
	case e := <-r.spare.process.Exit:
		exit = &e
		r.markEnded()
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
	r.release()
	return res
}

// kill kills all processes and reaps the first one, unless exit already has its end. It returns
// that end, or nil if it was not observed, and whether all processes are dead.
func (r *commandRun) kill(exit *prefork.Exit) (*prefork.Exit, bool) {
	if r.timer != nil {
		defer r.timer.Stop()
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), killTime,
		errors.New("time limit for killing processes exceeded"))
	defer cancel()
	if exit == nil {
		_ = r.spare.process.Signal(syscall.SIGKILL) // the process may not be in the group yet; it may also be gone
	}
	err := r.spare.group.Kill(ctx)
	if err != nil {
		r.s.Log.Error("failed to kill a command", "command", r.id, "error", err)
	}
	if exit == nil {
		exit = r.awaitExit(ctx)
	}
	r.mu.Lock()
	r.over = true
	r.mu.Unlock()
	r.s.reaper.ReapDead()
	return exit, err == nil && exit != nil
}

// awaitExit waits for the end of the killed first process until ctx ends. If a tracer holds it, the
// tracer is killed.
func (r *commandRun) awaitExit(ctx context.Context) *prefork.Exit {
	tick := time.NewTicker(tracerTimeout)
	defer tick.Stop()
	for {
		select {
		case e := <-r.spare.process.Exit:
			return &e
		case <-tick.C:
			r.s.killKeepers(r.spare.process.Pid)
		case <-ctx.Done():
			return nil
		}
	}
}

// drain moves what the pipes still hold.
func (r *commandRun) drain() {
	past := time.Unix(1, 0)
	for _, p := range []*pipe{&r.spare.out, &r.spare.err} {
		p.ours.SetReadDeadline(past) //nolint:errcheck // a closed one has nothing to read
	}
	r.pumps.Wait()
	r.closeStreams()
}

// release unregisters the command and removes its group in the background.
func (r *commandRun) release() {
	s := r.s
	s.work.Go(func() {
		if err := r.spare.group.Remove(); err != nil {
			s.Log.Warn("failed to remove a command's group", "command", r.id, "error", err)
		}
		s.spares.requestRefill()
	})
	s.unregister(r)
}
