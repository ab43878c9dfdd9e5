package server

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/server/spool"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// maxShown is how much of argv a shell's state includes, in bytes, and maxListed how much each
// shell in a list does. The JSON of either must fit one frame.
const (
	maxShown  = 64 << 10
	maxListed = 1 << 10
)

// maxGrace bounds the time between TERM and KILL.
const maxGrace = time.Minute

// shell is a background command with its output.
type shell struct {
	cmd     wire.Command
	out     *spool.Stream
	err     *spool.Stream
	input   chan struct{} // held by the stream that writes to stdin
	started chan struct{} // closed once run or failure is set
	done    chan struct{} // closed once result is set

	// Written before started is closed.
	run       *commandRun
	startedAt time.Time
	failure   error

	result runtime.Result // written before done is closed
}

// startShell starts a shell, or returns the existing one with this id, which may still be starting.
func (s *Server) startShell(ctx context.Context, cmd wire.Command) (wire.Shell, error) {
	if f := check(&cmd); f != nil {
		return wire.Shell{}, f
	}
	if cmd.ID == "" {
		return wire.Shell{}, wire.Failf(wire.InvalidArgument, "id", "must not be empty")
	}
	sh, fresh, err := s.reserveShell(cmd)
	if err != nil {
		return wire.Shell{}, err
	}
	if fresh {
		s.launchShell(ctx, sh)
	}
	select {
	case <-sh.started:
	case <-ctx.Done():
		return wire.Shell{}, errShutDown()
	}
	if sh.failure != nil {
		return wire.Shell{}, sh.failure
	}
	return sh.state(), nil
}

// reserveShell registers the id, so that two concurrent starts make one shell.
func (s *Server) reserveShell(cmd wire.Command) (*shell, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh := s.shells[cmd.ID]; sh != nil {
		return sh, false, nil
	}
	if len(s.shells) >= wire.MaxShells {
		return nil, false, wire.Failf(wire.ResourceExhausted, "",
			"the limit of %d shells is reached: forget one that has ended", wire.MaxShells)
	}
	sh := &shell{cmd: cmd, input: make(chan struct{}, 1), started: make(chan struct{}), done: make(chan struct{})}
	limit := cmp.Or(cmd.Spool, wire.SpoolBytes)
	sh.out, sh.err = s.spools.Stream(limit, cmd.Wait), s.spools.Stream(limit, cmd.Wait)
	s.shells[cmd.ID] = sh
	return sh, true, nil
}

// launchShell starts the shell's command. On failure it drops the shell.
func (s *Server) launchShell(ctx context.Context, sh *shell) {
	defer close(sh.started)
	sh.failure = func() error {
		p, f := s.program(&sh.cmd)
		if f != nil {
			return f
		}
		r, err := s.newRun(sh.cmd)
		if err != nil {
			return err
		}
		if err := r.launch(ctx, p); err != nil {
			return err
		}
		sh.run, sh.startedAt = r, time.Now()
		return nil
	}()
	if sh.failure != nil {
		s.dropShell(sh)
		return
	}
	sh.run.startPumps(spoolSink{sh.out}, spoolSink{sh.err})
	s.work.Go(func() {
		res := sh.run.wait(func() { sh.out.Force(); sh.err.Force() })
		sh.out.Close()
		sh.err.Close()
		sh.result = res
		close(sh.done)
	})
}

func (s *Server) dropShell(sh *shell) {
	s.mu.Lock()
	delete(s.shells, sh.cmd.ID)
	s.mu.Unlock()
	sh.out.Free()
	sh.err.Free()
}

// findShell returns a shell that has been started.
func (s *Server) findShell(id string) (*shell, error) {
	s.mu.Lock()
	sh := s.shells[id]
	s.mu.Unlock()
	if sh != nil {
		select {
		case <-sh.started:
			if sh.failure == nil {
				return sh, nil
			}
		default: // its start has not been answered yet
		}
	}
	return nil, wire.Failf(wire.NotFound, "id", "shell %.128q not found", id)
}

func (sh *shell) ended() bool {
	select {
	case <-sh.done:
		return true
	default:
		return false
	}
}

// state describes a started shell.
func (sh *shell) state() wire.Shell {
	w := wire.Shell{ID: sh.cmd.ID, Argv: shorten(sh.cmd.Argv, maxShown), StartedAt: sh.startedAt}
	if sh.ended() {
		res := sh.result
		w.Result = &res
	}
	w.Stdout, w.Stderr, w.TTY = span(sh.out), span(sh.err), sh.tty()
	return w
}

func span(st *spool.Stream) wire.Span {
	start, end, _ := st.Span()
	return wire.Span{Start: start, End: end}
}

func (s *Server) showShell(ref wire.ShellRef) (wire.Shell, error) {
	sh, err := s.findShell(ref.ID)
	if err != nil {
		return wire.Shell{}, err
	}
	return sh.state(), nil
}

// listShells lists the started shells, oldest first, with argv shortened to fit one frame.
func (s *Server) listShells() []wire.Shell {
	s.mu.Lock()
	ids := make([]string, 0, len(s.shells))
	for id := range s.shells {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	list := []wire.Shell{}
	for _, id := range ids {
		if sh, err := s.findShell(id); err == nil {
			w := sh.state()
			w.Argv = shorten(w.Argv, maxListed)
			list = append(list, w)
		}
	}
	slices.SortFunc(list, func(a, b wire.Shell) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

// shorten cuts argv to about left bytes.
func shorten(argv []string, left int) []string {
	for i, a := range argv {
		if left -= len(a) + 8; left < 0 {
			return append(slices.Clone(argv[:i]), "…")
		}
	}
	return argv
}

// signalCommand signals a shell, or a command of another stream.
func (s *Server) signalCommand(sig wire.Signal) (struct{}, error) {
	s.mu.Lock()
	r, t := s.running[sig.ID], s.sessionCommands[sig.ID]
	s.mu.Unlock()
	if t != nil {
		return struct{}{}, t.signal(sig.Number)
	}
	if r == nil {
		return struct{}{}, wire.Failf(wire.NotFound, "id", "no command %.128q is running", sig.ID)
	}
	return struct{}{}, r.signal(sig.Number, sig.All)
}

// killShell ends a shell and returns once all its processes are dead. A shell that has already
// ended is not an error. If ctx ends before the grace does, the shell is not killed.
func (s *Server) killShell(ctx context.Context, k wire.Kill) (wire.Shell, error) {
	if k.Grace < 0 || k.Grace > maxGrace {
		return wire.Shell{}, wire.Failf(wire.InvalidArgument, "grace_ns", "must be from 0 to %d", maxGrace)
	}
	sh, err := s.findShell(k.ID)
	if err != nil {
		return wire.Shell{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, k.Grace+2*killTime,
		errors.New("the command did not end in time"))
	defer cancel()
	if k.Grace > 0 && !sh.ended() {
		sh.run.setCause(runtime.Cancelled)
		if err := sh.run.signal(int(syscall.SIGTERM), true); err == nil {
			soon := time.NewTimer(k.Grace)
			defer soon.Stop()
			select {
			case <-sh.done:
			case <-soon.C:
			case <-ctx.Done():
				return wire.Shell{}, errShutDown()
			}
		}
	}
	sh.run.stop(runtime.Cancelled)
	select {
	case <-sh.done:
		return sh.state(), nil
	case <-ctx.Done():
		return wire.Shell{}, wire.Failf(wire.Internal, "", "kill shell %q: %v", k.ID, context.Cause(ctx))
	}
}

func (s *Server) forgetShell(ref wire.ShellRef) (struct{}, error) {
	sh, err := s.findShell(ref.ID)
	if err != nil {
		return struct{}{}, err
	}
	if !sh.ended() {
		return struct{}{}, wire.Failf(wire.FailedPrecondition, "id", "shell %q is running: kill it first", ref.ID)
	}
	s.dropShell(sh)
	return struct{}{}, nil
}
