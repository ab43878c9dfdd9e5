package harness

import (
	"errors"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Command is a finished run of the command line.
type Command struct {
	Code           int // -1 if a signal ended it
	Stdout, Stderr string
}

// Running is a command line that runs.
type Running struct {
	t        testing.TB
	cmd      *exec.Cmd
	out, err limited
	ended    chan struct{}
}

// CLI runs the program with the server's configuration and waits for it.
func (s *Server) CLI(tb testing.TB, args ...string) Command {
	tb.Helper()
	return s.Launch(tb, nil, args...).Wait()
}

// Launch starts the program with the server's configuration.
func (s *Server) Launch(tb testing.TB, stdin io.Reader, args ...string) *Running {
	tb.Helper()
	return s.launch(tb, &syscall.SysProcAttr{Setpgid: true}, append(s.environment(), "ORCHESTRATOR_CONFIG="+s.config), stdin, args)
}

// Account is an ordinary account of this host: one that is not root.
type Account struct {
	UID, GID uint32
	Groups   []uint32 // beside GID
	Env      []string // such as ORCHESTRATOR_TOKEN
}

// LaunchAs starts the program as another account. It does not know the server's configuration,
// which that account may not read.
func (s *Server) LaunchAs(tb testing.TB, as Account, stdin io.Reader, args ...string) *Running {
	tb.Helper()
	who := &syscall.Credential{Uid: as.UID, Gid: as.GID, Groups: as.Groups}
	return s.launch(tb, &syscall.SysProcAttr{Setpgid: true, Credential: who}, append(s.environment(), as.Env...), stdin, args)
}

func (s *Server) launch(
	tb testing.TB,
	attr *syscall.SysProcAttr,
	env []string,
	stdin io.Reader,
	args []string,
) *Running {
	tb.Helper()
	r := &Running{t: tb, cmd: exec.Command(s.bin, args...), ended: make(chan struct{})}
	r.cmd.Env, r.cmd.SysProcAttr = env, attr
	r.cmd.Stdin, r.cmd.Stdout, r.cmd.Stderr = stdin, &r.out, &r.err
	// Do not wait for a child that keeps the output open.
	r.cmd.WaitDelay = Short
	if err := r.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go func() { // Wait and the cleanup wait for it
		_ = r.cmd.Wait()
		close(r.ended)
	}()
	tb.Cleanup(func() {
		select {
		case <-r.ended:
			return
		default:
		}
		_ = r.cmd.Process.Kill()
		<-r.ended
	})
	return r
}

// Signal sends a signal to the program.
func (r *Running) Signal(sig syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		r.t.Fatal(err)
	}
}

// Output returns what the program has written to standard output so far.
func (r *Running) Output() string { return r.out.String() }

// Wait waits until the program has exited.
func (r *Running) Wait() Command {
	r.t.Helper()
	select {
	case <-r.ended:
	case <-time.After(2 * Long):
		_ = r.cmd.Process.Signal(syscall.SIGQUIT)
		time.Sleep(time.Second) // time to write its goroutines
		r.t.Fatalf("%v did not end within %s\n%s", r.cmd.Args, 2*Long, tail(r.err.String(), 200))
	}
	return Command{Code: r.cmd.ProcessState.ExitCode(), Stdout: r.out.String(), Stderr: r.err.String()}
}

// Is fails the test unless the command exited with code and wrote text to standard error, in a
// single line if the message is the program's own.
func (c Command) Is(tb testing.TB, code int, text string) {
	tb.Helper()
	if c.Code != code || !strings.Contains(c.Stderr, text) {
		tb.Errorf("exit code %d, want %d with %q\nstdout: %.2000s\nstderr: %.2000s", c.Code, code, text, c.Stdout, c.Stderr)
	}
}

// Over returns nil once the program has exited, and an error while it runs.
func (r *Running) Over() error {
	select {
	case <-r.ended:
		return nil
	default:
		return errors.New("it runs")
	}
}
