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

// beginTime is how long a shell may take until it has carried out its first
// command, and until a command's pipes are open.
const beginTime = 10 * time.Second

// session is a shell that commands are run in, one at a time. The guest writes
// lines to its control; what each command reads and writes are pipes of its
// own, which the shell opens by name.
type session struct {
	s       *Server
	start   wire.SessionStart
	slot    chan struct{}   // holds one: taken by the command that runs
	ctx     context.Context // ends with the session
	cancel  context.CancelFunc
	started chan struct{} // closed when run or failure is there
	done    chan struct{} // closed when result is there

	// Written before started is closed.
	run     *run
	fold    fold
	folder  folder
	control *os.File
	at      time.Time
	failure error

	result runtime.Result // written before done is closed

	mu       sync.Mutex
	busy     bool // with a command that was not answered
	waiting  int
	commands int64
	left     int            // commands whose output is held open
	streams  sync.WaitGroup // what reads those
}

// startSession starts a session, or finds the one of that id.
func (s *Server) startSession(st wire.SessionStart) (wire.Session, error) {
	if f := checkSession(&st); f != nil {
		return wire.Session{}, f
	}
	se, fresh, err := s.reserveSession(st)
	if err != nil {
		return wire.Session{}, err
	}
	if fresh {
		se.bringUp()
	}
	select {
	case <-se.started:
	case <-s.ctx.Done():
		return wire.Session{}, wire.Failf(wire.Unavailable, "", "the sandbox is ending")
	}
	if se.failure != nil {
		return wire.Session{}, se.failure
	}
	return se.state(), nil
}

// reserveSession takes the id. Where there is no room, the one that ended first
// is forgotten.
func (s *Server) reserveSession(st wire.SessionStart) (*session, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if se := s.sessions[st.ID]; se != nil {
		return se, false, nil
	}
	if len(s.sessions) >= wire.MaxSessions && !s.dropEnded() {
		return nil, false, wire.Failf(wire.ResourceExhausted, "", "%d sessions are open, no more are allowed; end one", wire.MaxSessions)
	}
	return s.newSession(st), true, nil
}

// newSession is called with the lock held.
func (s *Server) newSession(st wire.SessionStart) *session {
	se := &session{s: s, start: st, slot: make(chan struct{}, 1), started: make(chan struct{}), done: make(chan struct{})}
	se.ctx, se.cancel = context.WithCancel(context.Background())
	s.sessions[st.ID] = se
	return se
}

// renew starts a session that has ended anew, or finds it where another did. If
// it cannot be started, the old one stays.
func (s *Server) renew(old *session) (*session, error) {
	s.mu.Lock()
	se := s.sessions[old.start.ID]
	fresh := se == old
	if fresh {
		se = s.newSession(old.start)
	}
	s.mu.Unlock()
	if se == nil {
		return nil, wire.Failf(wire.NotFound, "session", "there is no session %.128q", old.start.ID)
	}
	if fresh {
		se.bringUp()
	}
	<-se.started // bounded by beginTime and killTime
	if se.failure == nil {
		return se, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if fresh && s.sessions[old.start.ID] == nil {
		s.sessions[old.start.ID] = old
	}
	return nil, se.failure
}

// dropEnded is called with the lock held.
func (s *Server) dropEnded() bool {
	var oldest *session
	for _, se := range s.sessions {
		if se.ended() && (oldest == nil || se.at.Before(oldest.at)) {
			oldest = se
		}
	}
	if oldest != nil {
		delete(s.sessions, oldest.start.ID)
	}
	return oldest != nil
}

// bringUp starts the shell and has it carry out its beginning, or drops the
// session again.
func (se *session) bringUp() {
	defer close(se.started)
	if se.failure = se.begin(); se.failure != nil {
		se.s.mu.Lock()
		delete(se.s.sessions, se.start.ID)
		se.s.mu.Unlock()
	}
}

func (se *session) begin() (err error) {
	cmd := wire.Command{Argv: shells[se.start.Shell], Cwd: se.start.Cwd, Env: se.start.Env, User: se.start.User, Stdin: true}
	if f := check(&cmd); f != nil {
		return f
	}
	p, f := se.s.program(&cmd)
	if f != nil {
		return f
	}
	if se.folder, err = newFolder(se.s.Sessions); err != nil {
		return cannotStart(err)
	}
	defer func() {
		if err != nil && se.run == nil {
			se.clear()
		}
	}()
	if se.control, err = se.folder.fifo(nameControl, theyRead); err != nil {
		return cannotStart(err)
	}
	theirs, err := unix.Open(se.folder.path(nameControl), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return cannotStart(fmt.Errorf("open a session's control: %w", err))
	}
	r, err := se.s.begin(cmd)
	if err != nil {
		unix.Close(theirs)
		return err
	}
	r.sp.in.handOver() // the control takes its place
	r.sp.in.theirs = theirs
	se.fold = se.s.newFold(r.sp)
	r.mu.Lock()
	r.sp.group = se.fold
	r.mu.Unlock()
	if err := r.launch(p); err != nil {
		return err
	}
	se.run, se.at = r, time.Now()
	r.pump(nil, nil) // what the shell itself says is for nobody
	se.s.work.Go(func() {
		se.result = r.wait(nil)
		close(se.done)
		se.cancel()
		se.slot <- struct{}{} // the command that found the end still uses the folder
		se.clear()
		se.streams.Wait()
	})
	return se.prove()
}

// prove has the shell carry out its beginning.
func (se *session) prove() error {
	se.slot <- struct{}{}
	t := newTurn(se, wire.SessionExec{Text: beginnings[se.start.Shell], Timeout: beginTime})
	res, err := t.carryOut(nil, nil)
	switch {
	case err != nil:
	case res.Ended:
		err = wire.Failf(wire.FailedPrecondition, "shell", "%s ended as it began: %s", se.start.Shell, ending(&res.Result))
	case res.Ending != runtime.Exited || res.ExitCode != 0:
		err = wire.Failf(wire.FailedPrecondition, "shell", "%s did not begin well: %s", se.start.Shell, ending(&res.Result))
	}
	if err != nil {
		se.end()
	}
	se.mu.Lock()
	se.commands = 0
	se.mu.Unlock()
	se.release()
	return err
}

// clear removes what the session has outside of its processes.
func (se *session) clear() {
	if se.control != nil {
		se.control.Close()
	}
	if err := se.folder.remove(); err != nil {
		se.s.Log.Warn("folder of a session was not removed", "session", se.start.ID, "error", err)
	}
}

// end kills the session and waits for its end.
func (se *session) end() {
	se.run.stop(runtime.Cancelled)
	<-se.done // bounded by killTime
}

// release gives the turn back, after the shell was made ready for the next
// command.
func (se *session) release() {
	if !se.ended() {
		// A shell that is not there any more is about to be seen to have ended.
		if err := se.fold.next(); err != nil && !se.ended() && !errors.Is(err, syscall.ESRCH) {
			// The next command would be blamed for, and killed with, this one.
			se.s.Log.Warn("a session was ended: it could not be made ready", "session", se.start.ID, "error", err)
			se.run.stop(runtime.SandboxLost)
		}
	}
	<-se.slot
}

func (se *session) ended() bool {
	select {
	case <-se.done:
		return true
	default:
		return false
	}
}

// findSession returns one that was started.
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
		default: // its id has not been answered yet
		}
	}
	return nil, wire.Failf(wire.NotFound, "session", "there is no session %.128q", id)
}

func (se *session) state() wire.Session {
	w := wire.Session{ID: se.start.ID, Shell: se.start.Shell, Pid: se.run.sp.leader.Pid, StartedAt: se.at}
	se.mu.Lock()
	w.Commands, w.Busy, w.Waiting, w.Left = se.commands, se.busy, se.waiting, se.left
	se.mu.Unlock()
	if se.ended() {
		res := se.result
		w.Result, w.Busy, w.Left = &res, false, 0
	}
	return w
}

// listSessions lists those that were started, the oldest first.
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

// idleSessions counts the shells that run and have nothing to do.
func (s *Server) idleSessions() int {
	n := 0
	for _, w := range s.listSessions() {
		if w.Result == nil && !w.Busy {
			n++
		}
	}
	return n
}

// endSession kills what lives of a session, and forgets it.
func (s *Server) endSession(ref wire.ShellRef) (wire.Session, error) {
	se, err := s.findSession(ref.ID)
	if err != nil {
		return wire.Session{}, err
	}
	se.run.stop(runtime.Cancelled)
	select {
	case <-se.done:
	case <-time.After(2 * killTime):
		return wire.Session{}, wire.Failf(wire.Internal, "", "end session %q: the shell does not end", ref.ID)
	}
	s.mu.Lock()
	if s.sessions[ref.ID] == se {
		delete(s.sessions, ref.ID)
	}
	s.mu.Unlock()
	return se.state(), nil
}

// ending is a result in words.
func ending(r *runtime.Result) string {
	switch r.Ending {
	case runtime.Exited:
		return fmt.Sprintf("exit %d", r.ExitCode)
	case runtime.Signalled:
		return fmt.Sprintf("signal %d", r.Signal)
	}
	return string(r.Ending)
}
