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
	// endOfInput is Ctrl-D, which terminals take for the end of input.
	endOfInput = "\x04"
	// endTime is the interval at which it is typed after the end of our input. A command that is
	// starting may not notice the first one.
	endTime = time.Second
	// awayTime is how long a connection is lost before that is reported. A restarting server is
	// back by then, and the screen stays intact.
	awayTime = 2 * time.Second
	// resetScreenSequence undoes what a full-screen program left behind that was killed or detached
	// from: the alternate screen, a scroll region, hidden cursor, mouse, paste mode, colours. It
	// saves the cursor first: some terminals restore it even if there was no alternate screen.
	resetScreenSequence = "\x1b7\x1b[?1049l\x1b7\x1b[r\x1b8\x1b[?25h" +
		"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?1l\x1b>\x1b[0m\r\n"
)

// screen is the local terminal. The zero value means that input or output is a file or a pipe.
type screen struct {
	in, out *os.File
	raw     func() // restores the terminal; nil if it is not raw
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

// makeRaw passes every key on unchanged, until restore.
func (s *screen) makeRaw() error {
	if !s.there() {
		return nil
	}
	was, err := term.MakeRaw(int(s.in.Fd()))
	if err != nil {
		return fmt.Errorf("make the terminal raw: %w", err)
	}
	s.raw = sync.OnceFunc(func() { _ = term.Restore(int(s.in.Fd()), was) }) // nothing else can be done
	return nil
}

// restore undoes makeRaw. It is idempotent and may be called from any goroutine.
func (s *screen) restore() {
	if s.raw != nil {
		s.raw()
	}
}

// terminalSession is a user attached to a remote terminal.
type terminalSession struct {
	app      *cli.App
	screen   screen
	keys     []byte // keys that detach
	viewOnly bool   // send no input
	// sendsEOF ends the command's input at the end of ours, if ours is not a terminal.
	sendsEOF        bool
	reattachCommand string // command line to attach again

	mu   sync.Mutex
	away *time.Timer
}

// options returns callbacks that report lost output and a lost connection.
func (s *terminalSession) options() client.TerminalOptions {
	return client.TerminalOptions{
		ReadOnly: s.viewOnly,
		Gap: func(from, to int64) {
			s.note("%d bytes are no longer kept: %d to %d", to-from, from, to-1)
		},
		Away: func(error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.away = time.AfterFunc(awayTime, func() { s.note("connection lost; reconnecting, and the command keeps running") })
		},
		Back: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.away != nil && !s.away.Stop() {
				s.note("reconnected")
			}
		},
	}
}

// note prints a message between the output.
func (s *terminalSession) note(format string, args ...any) {
	end := "\n"
	if s.screen.raw != nil {
		end = "\r\n"
	}
	fmt.Fprintf(s.app.Stderr, "orchestrator: "+format+end, args...)
}

var errDetach = errors.New("detached")

// attach shows a terminal until its command ends, and returns the result. If the detach keys were
// typed, it returns errDetach.
func (s *terminalSession) attach(ctx context.Context, t *client.Terminal) (v1.ExecResult, error) {
	defer t.Close()
	if err := s.screen.makeRaw(); err != nil { // a viewer can detach, too
		return v1.ExecResult{}, err
	}
	defer s.screen.restore() // after a panic, too
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
		t.Close()
		<-shown
		return v1.ExecResult{}, errDetach
	case err = <-shown:
	}
	if err != nil && context.Cause(ctx) == nil {
		t.Close()
	}
	r, wErr := t.Wait()
	if wErr != nil && !errors.Is(wErr, io.ErrClosedPipe) {
		err = wErr
	}
	return r, err
}

// restoreAtQuit restores the local terminal before SIGQUIT has its default effect.
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
			quit()
		case <-done:
		}
	})
	return func() {
		signal.Stop(quits)
		close(done)
		wg.Wait()
	}
}

// resetScreen undoes what the remote program left on the screen.
func (s *terminalSession) resetScreen() {
	if s.screen.there() {
		fmt.Fprint(s.app.Stdout, resetScreenSequence)
	}
}

// restoreOnPanic restores the local terminal before a panic in a goroutine ends the process.
func (s *terminalSession) restoreOnPanic() {
	if p := recover(); p != nil {
		s.screen.restore()
		panic(p)
	}
}

// copyInput sends our input until it ends or the detach keys are typed.
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

// copyKeys does the same for the keys of the local terminal.
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

// followSize gives the remote terminal the size of the local one, now and at each change.
func (s *terminalSession) followSize(t *client.Terminal) (stop func()) {
	changed := make(chan os.Signal, 1)
	notifySize(changed)
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

// leave says how to attach again, unless the command has ended.
func (s *terminalSession) leave(err error) error {
	s.screen.restore()
	s.mu.Lock()
	if s.away != nil {
		s.away.Stop()
	}
	s.mu.Unlock()
	s.resetScreen()
	s.screen.raw = nil // from here on, line ends are normal
	if errors.Is(err, errDetach) {
		s.note("detached; the command keeps running: attach again with `%s`", s.reattachCommand)
		return nil
	}
	if !errdefs.IsNotFound(err) { // else the sandbox is gone, and the command with it
		s.note("the command may still be running: attach again with `%s`", s.reattachCommand)
	}
	return err
}
