package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// startTimeout is how long a shell may take to run its preamble, and to open the pipes of a
// command.
const startTimeout = 10 * time.Second

// session is a shell that runs commands one at a time. The guest writes lines to its control FIFO.
// Each command has its own FIFOs, which the shell opens by name.
type session struct {
	s       *Server
	spec    wire.SessionStart
	turn    chan struct{}   // holds one token, taken by the running command
	ctx     context.Context // ends with the session
	cancel  context.CancelFunc
	started chan struct{} // closed once run or failure is set
	done    chan struct{} // closed once result is set

	// Written before started is closed.
	run       *commandRun
	group     sessionGroup
	dir       fifoDir
	control   *os.File
	startedAt time.Time
	failure   error

	result runtime.Result // written before done is closed

	mu         sync.Mutex
	busy       bool // a command has not been answered yet
	waiting    int
	commands   int64
	background int            // number of ended commands whose output is still held open
	streams    sync.WaitGroup // goroutines that read this output
}

// startSession starts a session, or returns the existing one with this id.
func (s *Server) startSession(ctx context.Context, st wire.SessionStart) (wire.Session, error) {
	if f := checkSession(&st); f != nil {
		return wire.Session{}, f
	}
	se, fresh, err := s.reserveSession(st)
	if err != nil {
		return wire.Session{}, err
	}
	if fresh {
		se.launch(ctx)
	}
	select {
	case <-se.started:
	case <-ctx.Done():
		return wire.Session{}, errShutDown()
	}
	if se.failure != nil {
		return wire.Session{}, se.failure
	}
	return se.state(), nil
}

// reserveSession registers the id. If there are too many sessions, it forgets the one that was
// started first among those that have ended.
func (s *Server) reserveSession(st wire.SessionStart) (*session, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if se := s.sessions[st.ID]; se != nil {
		return se, false, nil
	}
	if len(s.sessions) >= wire.MaxSessions && !s.dropEnded() {
		return nil, false, wire.Failf(wire.ResourceExhausted, "", "the limit of %d open sessions is reached: end one",
			wire.MaxSessions)
	}
	return s.newSession(st), true, nil
}

// newSession registers a new session. s.mu must be held.
func (s *Server) newSession(st wire.SessionStart) *session {
	se := &session{s: s, spec: st, turn: make(chan struct{}, 1), started: make(chan struct{}), done: make(chan struct{})}
	se.ctx, se.cancel = context.WithCancel(context.Background())
	s.sessions[st.ID] = se
	return se
}

// renew restarts a session that has ended, or returns the one that another caller restarted. If the
// start fails, the old session stays registered.
func (s *Server) renew(ctx context.Context, old *session) (*session, error) {
	s.mu.Lock()
	se := s.sessions[old.spec.ID]
	fresh := se == old
	if fresh {
		se = s.newSession(old.spec)
	}
	s.mu.Unlock()
	if se == nil {
		return nil, wire.Failf(wire.NotFound, "session", "session %.128q not found", old.spec.ID)
	}
	if fresh {
		se.launch(ctx)
	} else {
		select {
		case <-se.started:
		case <-ctx.Done():
			return nil, errShutDown()
		}
	}
	if se.failure == nil {
		return se, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh && s.sessions[old.spec.ID] == nil {
		s.sessions[old.spec.ID] = old
	}
	return nil, se.failure
}

// dropEnded forgets the oldest ended session and reports whether there was one. s.mu must be held.
func (s *Server) dropEnded() bool {
	var oldest *session
	for _, se := range s.sessions {
		if se.ended() && (oldest == nil || se.startedAt.Before(oldest.startedAt)) {
			oldest = se
		}
	}
	if oldest != nil {
		delete(s.sessions, oldest.spec.ID)
	}
	return oldest != nil
}

// launch starts the shell and runs its preamble. On failure, or if ctx ends before, it drops the
// session.
func (se *session) launch(ctx context.Context) {
	defer close(se.started)
	if se.failure = se.startShell(ctx); se.failure != nil {
		se.s.mu.Lock()
		delete(se.s.sessions, se.spec.ID)
		se.s.mu.Unlock()
	}
}

func (se *session) startShell(ctx context.Context) (err error) {
	cmd := wire.Command{Argv: shellArgv[se.spec.Shell], Cwd: se.spec.Cwd, Env: se.spec.Env, User: se.spec.User,
		Stdin: true}
	if f := check(&cmd); f != nil {
		return f
	}
	p, f := se.s.program(&cmd)
	if f != nil {
		return f
	}
	if se.dir, err = newFIFODir(se.s.Sessions); err != nil {
		return cannotStart(err)
	}
	defer func() {
		if err != nil && se.run == nil {
			se.cleanUp()
		}
	}()
	if se.control, err = se.dir.fifo(nameControl, shellReads); err != nil {
		return cannotStart(err)
	}
	theirs, err := unix.Open(se.dir.path(nameControl), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotStart(fmt.Errorf("open a session's control: %w", err))
	}
	r, err := se.s.newRun(cmd)
	if err != nil {
		unix.Close(theirs)
		return err
	}
	r.spare.in.closeTheirs() // the control FIFO replaces stdin
	r.spare.in.theirs = theirs
	se.group = se.s.newSessionGroup(r.spare)
	r.mu.Lock()
	r.spare.group = se.group
	r.mu.Unlock()
	if err := r.launch(ctx, p); err != nil {
		return err
	}
	se.run, se.startedAt = r, time.Now()
	r.startPumps(nil, nil) // the shell's own output is dropped
	se.s.work.Go(func() {
		se.result = r.wait(nil)
		close(se.done)
		se.cancel()
		se.turn <- struct{}{} // the command that saw the end still uses the directory
		se.cleanUp()
		se.streams.Wait()
	})
	defer context.AfterFunc(ctx, func() { r.stop(runtime.SandboxLost) })()
	return se.runPreamble()
}

// runPreamble makes the shell run its preamble.
func (se *session) runPreamble() error {
	se.turn <- struct{}{}
	t := newSessionCommand(se, wire.SessionExec{Text: preambles[se.spec.Shell], Timeout: startTimeout})
	res, err := t.run(nil, nil)
	switch {
	case err != nil:
	case res.Ended:
		err = wire.Failf(wire.FailedPrecondition, "shell", "%s ended during its start: %s", se.spec.Shell,
			describeEnding(&res.Result))
	case res.Ending != runtime.Exited || res.ExitCode != 0:
		err = wire.Failf(wire.FailedPrecondition, "shell", "%s failed to start: %s", se.spec.Shell,
			describeEnding(&res.Result))
	}
	if err != nil {
		se.end()
	}
	se.mu.Lock()
	se.commands = 0
	se.mu.Unlock()
	se.releaseTurn()
	return err
}

// cleanUp removes the session's files.
func (se *session) cleanUp() {
	if se.control != nil {
		se.control.Close()
	}
	if err := se.dir.remove(); err != nil {
		se.s.Log.Warn("failed to remove a session's directory", "session", se.spec.ID, "error", err)
	}
}

// end kills the session and waits for its end.
func (se *session) end() {
	se.run.stop(runtime.Cancelled)
	<-se.done // bounded by killTime
}

// releaseTurn prepares the shell for the next command and gives the turn back.
func (se *session) releaseTurn() {
	if !se.ended() {
		// ESRCH means that the shell is gone; its end is about to be observed.
		if err := se.group.beginCommand(); err != nil && !se.ended() && !errors.Is(err, syscall.ESRCH) {
			// Otherwise the next command would be blamed for this one, and killed with it.
			se.s.Log.Warn("ended a session that could not be prepared", "session", se.spec.ID, "error", err)
			se.run.stop(runtime.SandboxLost)
		}
	}
	<-se.turn
}

func (se *session) ended() bool {
	select {
	case <-se.done:
		return true
	default:
		return false
	}
}

// findSession returns a session that has been started.
func (s *Server) findSession(id string) (*session, error) {
	s.mu.Lock()
	se := s.sessions[id]
	s.mu.Unlock()
	if se != nil {
		select {
		case <-se.started:
			if se.failure == nil {
				return se, nil
			}
		default: // its start has not been answered yet
		}
	}
	return nil, wire.Failf(wire.NotFound, "session", "session %.128q not found", id)
}

func (se *session) state() wire.Session {
	w := wire.Session{ID: se.spec.ID, Shell: se.spec.Shell, Pid: se.run.spare.process.Pid, StartedAt: se.startedAt}
	se.mu.Lock()
	w.Commands, w.Busy, w.Waiting, w.Left = se.commands, se.busy, se.waiting, se.background
	se.mu.Unlock()
	if se.ended() {
		res := se.result
		w.Result, w.Busy, w.Left = &res, false, 0
	}
	return w
}

// listSessions lists the started sessions, oldest first.
func (s *Server) listSessions() []wire.Session {
	s.mu.Lock()
	ids := make([]string, 0, len(s.sessions))
	for id := range s.sessions {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	list := []wire.Session{}
	for _, id := range ids {
		if se, err := s.findSession(id); err == nil {
			list = append(list, se.state())
		}
	}
	slices.SortFunc(list, func(a, b wire.Session) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// idleSessions counts the running shells without a command.
func (s *Server) idleSessions() int {
	n := 0
	for _, w := range s.listSessions() {
		if w.Result == nil && !w.Busy {
			n++
		}
	}
	return n
}

// endSession kills a session and forgets it. If ctx ends before the session does, the session stays
// registered.
func (s *Server) endSession(ctx context.Context, ref wire.ShellRef) (wire.Session, error) {
	se, err := s.findSession(ref.ID)
	if err != nil {
		return wire.Session{}, err
	}
	se.run.stop(runtime.Cancelled)
	select {
	case <-se.done:
	case <-ctx.Done():
		return wire.Session{}, errShutDown()
	case <-time.After(2 * killTime):
		return wire.Session{}, wire.Failf(wire.Internal, "", "end session %q: the shell did not end in time", ref.ID)
	}
	s.mu.Lock()
	if s.sessions[ref.ID] == se {
		delete(s.sessions, ref.ID)
	}
	s.mu.Unlock()
	return se.state(), nil
}

// describeEnding describes a result in words.
func describeEnding(r *runtime.Result) string {
	switch r.Ending {
	case runtime.Exited:
		return fmt.Sprintf("exit %d", r.ExitCode)
	case runtime.Signalled:
		return fmt.Sprintf("signal %d", r.Signal)
	default:
		return string(r.Ending)
	}
}
