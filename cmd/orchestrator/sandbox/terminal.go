package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/term"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

const (
	// endOfInput is what a terminal takes for the end of its input, Ctrl-D.
	endOfInput = "\x04"
	// endTime is how often it is typed where our input has ended: a command that
	// is just starting may not take the first one for that.
	endTime = time.Second
	// awayTime is how long a connection may be away before that is told: a server
	// that is restarted is back by then, and what is on the screen stays whole.
	awayTime = 2 * time.Second
	// resetScreenSequence undoes what a full-screen program that runs on, or was killed,
	// left of its own in a terminal: the other screen, a part that scrolls, hidden
	// cursor, mouse, pasting, colours. The cursor is kept first: some terminals
	// put it back also where there was no other screen.
	resetScreenSequence = "\x1b7\x1b[?1049l\x1b7\x1b[r\x1b8\x1b[?25h\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[0m\r\n"
)

// screen is our own terminal. The zero value is none: input and output are
// files or pipes, or one of them is.
type screen struct {
	in, out *os.File
	raw     func() // restores; nil: it is not raw
}

func newScreen(a *cli.App) screen {
	in, ok1 := a.Stdin.(*os.File)
	out, ok2 := a.Stdout.(*os.File)
	if !ok1 || !ok2 || !term.IsTerminal(int(in.Fd())) || !term.IsTerminal(int(out.Fd())) {
		return screen{}
	}
	return screen{in: in, out: out}
}

func (s *screen) there() bool { return s.in != nil }

func (s *screen) size() (cols, rows int) {
	if !s.there() {
		return 0, 0
	}
	cols, rows, err := term.GetSize(int(s.out.Fd()))
	if err != nil {
		return 0, 0
	}
	return cols, rows
}

// makeRaw hands every key on as it is, until restore.
func (s *screen) makeRaw() error {
	if !s.there() {
		return nil
	}
	was, err := term.MakeRaw(int(s.in.Fd()))
	if err != nil {
		return fmt.Errorf("make the terminal raw: %w", err)
	}
	s.raw = sync.OnceFunc(func() { _ = term.Restore(int(s.in.Fd()), was) }) // there is nothing else to try
	return nil
}

// restore undoes makeRaw. Idempotent, from any goroutine.
func (s *screen) restore() {
	if s.raw != nil {
		s.raw()
	}
}

// terminalSession is somebody at a remote terminal.
type terminalSession struct {
	app      *cli.App
	screen   screen
	keys     []byte // that detach
	viewOnly bool   // only look
	// sendsEOF: the end of our input, where it is no terminal, is the end of the
	// command's.
	sendsEOF        bool
	reattachCommand string // the command line that comes back

	mu   sync.Mutex
	away *time.Timer
}

// options are those that tell of gaps and of a connection that is away.
func (s *terminalSession) options() client.TerminalOptions {
	return client.TerminalOptions{
		ReadOnly: s.viewOnly,
		Gap: func(from, to int64) {
			s.note("%d bytes are no longer kept: %d to %d", to-from, from, to-1)
		},
		Away: func(error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.away = time.AfterFunc(awayTime, func() { s.note("the connection was cut; connecting again, and the command runs on meanwhile") })
		},
		Back: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.away != nil && !s.away.Stop() {
				s.note("connected again")
			}
		},
	}
}

// note says something between the output.
func (s *terminalSession) note(format string, args ...any) {
	end := "\n"
	if s.screen.raw != nil {
		end = "\r\n"
	}
	fmt.Fprintf(s.app.Stderr, "orchestrator: "+format+end, args...) //nolint:errcheck // a note
}

var errDetach = errors.New("detached")

// attach shows a terminal until its command ends, and returns how; errDetach if
// the keys for that were pressed.
func (s *terminalSession) attach(ctx context.Context, t *client.Terminal) (v1.ExecResult, error) {
	defer t.Close()                            //nolint:errcheck // it never fails
	if err := s.screen.makeRaw(); err != nil { // who only looks can detach, too
		return v1.ExecResult{}, err
	}
	defer s.screen.restore() // with a panic too
	defer context.AfterFunc(ctx, s.screen.restore)()
	defer s.restoreAtQuit()()
	detached := make(chan struct{})
	go s.copyInput(t, detached) // a Read of a terminal ends with the process
	if s.screen.there() && !s.viewOnly {
		defer s.followSize(t)()
	}
	shown := make(chan error, 1)
	go func() { // waited for below; Close ends it
		defer s.restoreOnPanic()
		_, err := io.Copy(s.app.Stdout, t)
		shown <- err
	}()
	var err error
	select {
	case <-detached:
		t.Close() //nolint:errcheck // it never fails
		<-shown
		return v1.ExecResult{}, errDetach
	case err = <-shown:
	}
	if err != nil && context.Cause(ctx) == nil {
		t.Close() //nolint:errcheck // our output failed, or the attachment has
	}
	r, wErr := t.Wait()
	if wErr != nil && !errors.Is(wErr, io.ErrClosedPipe) {
		err = wErr
	}
	return r, err
}

// restoreAtQuit restores our terminal before SIGQUIT does what it always does.
func (s *terminalSession) restoreAtQuit() (stop func()) {
	quits, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(quits, syscall.SIGQUIT)
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-quits:
			s.screen.restore()
			s.resetScreen()
			signal.Reset(syscall.SIGQUIT)
			_ = syscall.Kill(os.Getpid(), syscall.SIGQUIT) // it ends us
		case <-done:
		}
	})
	return func() {
		signal.Stop(quits)
		close(done)
		wg.Wait()
	}
}

// resetScreen undoes what the program at the remote terminal has not undone itself.
func (s *terminalSession) resetScreen() {
	if s.screen.there() {
		fmt.Fprint(s.app.Stdout, resetScreenSequence) //nolint:errcheck // for the eye
	}
}

// restoreOnPanic restores our terminal before a panic in a goroutine ends the process.
func (s *terminalSession) restoreOnPanic() {
	if p := recover(); p != nil {
		s.screen.restore()
		panic(p)
	}
}

// copyInput types what our input has until it ends or detaches.
func (s *terminalSession) copyInput(t io.Writer, detached chan<- struct{}) {
	defer s.restoreOnPanic()
	if s.screen.there() {
		s.copyKeys(t, detached)
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := s.app.Stdin.Read(buf)
		if !s.viewOnly && n > 0 {
			if _, wErr := t.Write(buf[:n]); wErr != nil {
				return
			}
		}
		if err != nil {
			break
		}
	}
	if !s.sendsEOF || s.viewOnly {
		return
	}
	for {
		if _, err := t.Write([]byte(endOfInput)); err != nil {
			return // the command has ended
		}
		time.Sleep(endTime)
	}
}

// copyKeys is that for our terminal.
func (s *terminalSession) copyKeys(t io.Writer, detached chan<- struct{}) {
	typist := newInputQueue(t)
	go func() { // sendsEOF with the process
		defer s.restoreOnPanic()
		typist.run()
	}()
	scan := detachScanner{keys: s.keys}
	buf := make([]byte, 32<<10)
	for {
		n, err := s.app.Stdin.Read(buf)
		out, leave := scan.feed(buf[:n])
		if !s.viewOnly && len(out) > 0 && typist.add(out) != nil {
			return
		}
		if leave {
			typist.drain(leaveTime)
			close(detached)
			return
		}
		if err != nil {
			return
		}
	}
}

// followSize gives the remote terminal the size of ours, now and when it
// changes.
func (s *terminalSession) followSize(t *client.Terminal) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer s.restoreOnPanic()
		for {
			if cols, rows := s.screen.size(); cols > 0 && rows > 0 {
				if t.Resize(cols, rows) != nil {
					return
				}
			}
			select {
			case <-changed:
			case <-quit:
				return
			}
		}
	})
	return func() {
		signal.Stop(changed)
		close(quit)
		wg.Wait()
	}
}

// leave tells how to come back, unless the command has ended.
func (s *terminalSession) leave(err error) error {
	s.screen.restore()
	s.mu.Lock()
	if s.away != nil {
		s.away.Stop()
	}
	s.mu.Unlock()
	s.resetScreen()
	s.screen.raw = nil // from here on lines end as usual
	if errors.Is(err, errDetach) {
		s.note("detached; the command runs on: come back with `%s`", s.reattachCommand)
		return nil
	}
	if !errdefs.IsNotFound(err) { // which is of a sandbox that is gone, with all of it
		s.note("the command may run on: come back with `%s`", s.reattachCommand)
	}
	return err
}
