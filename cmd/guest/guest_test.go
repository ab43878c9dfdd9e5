package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// The test binary acts as the guest in separate namespaces: "prepare" mounts file systems and drops
// capabilities as a driver would, then it becomes "guest".
const (
	roleEnv = "GUEST_TEST_ROLE"
	dirEnv  = "GUEST_TEST_DIR"
	bound   = 60 * time.Second
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "prepare":
		fmt.Fprintln(os.Stderr, "prepare:", prepare())
		os.Exit(9)
	case "guest":
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func prepare() error {
	for _, m := range []struct {
		source, target, fs string
		flags              uintptr
	}{
		{"", "/", "", unix.MS_REC | unix.MS_PRIVATE},
		{"proc", "/proc", "proc", 0},
	} {
		if err := unix.Mount(m.source, m.target, m.fs, m.flags, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	dir, err := unix.Open(os.Getenv(dirEnv), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return err
	}
	if err := os.Mkdir(wire.RunDir, 0o700); err != nil {
		return err
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", dir), wire.RunDir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := dropCapabilities(); err != nil {
		return err
	}
	if err := os.Setenv(roleEnv, "guest"); err != nil {
		return err
	}
	return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
}

// dropCapabilities keeps only the capabilities that a driver gives to PID 1.
func dropCapabilities() error {
	const keep = 1<<unix.CAP_SETUID | 1<<unix.CAP_SETGID | 1<<unix.CAP_KILL
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keep&(1<<c) == 0 {
			if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && !errors.Is(err, unix.EINVAL) {
				return err
			}
		}
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{{Effective: keep, Permitted: keep}}
	if _, _, errno := syscall.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&data)),
		0); errno != 0 {
		return errno
	}
	return nil
}

// sandbox is a guest that runs as PID 1 of separate namespaces.
type sandbox struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
	dir  string
	l    *guestconn.Listener
}

func startGuest(t *testing.T, args ...string) *sandbox {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	s := &sandbox{t: t, dir: t.TempDir(), done: make(chan struct{})}
	l, err := guestconn.Listen(filepath.Join(s.dir, "host.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s.l = l
	t.Cleanup(func() { l.Close() })
	s.cmd = exec.Command("/proc/self/exe", append([]string{"init"}, args...)...)
	// With the race detector, a process waits a second before it ends.
	s.cmd.Env = []string{roleEnv + "=prepare", dirEnv + "=" + s.dir, "SECRET=of the host", "GORACE=atexit_sleep_ms=0"}
	s.cmd.Stderr = os.Stderr
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.Expect(s.cmd.Process.Pid)
	go func() { defer close(s.done); s.cmd.Wait() }()
	t.Cleanup(func() { s.cmd.Process.Kill(); <-s.done })
	return s
}

func (s *sandbox) open() net.Conn {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), bound)
	defer cancel()
	nc, err := s.l.Open(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	return nc
}

// ask runs one operation and returns its reply and its output.
func ask[Out any](t *testing.T, nc net.Conn, op wire.Op, body any) (out Out, stdout string) {
	t.Helper()
	defer nc.Close()
	if err := nc.SetDeadline(time.Now().Add(bound)); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	c := wire.NewConn(nc)
	if err := c.WriteJSON(wire.KindRequest, wire.Request{Version: wire.Version, Op: op, Body: raw}); err != nil {
		t.Fatal(err)
	}
	for {
		kind, p, err := c.ReadFrame()
		if err != nil {
			t.Fatalf("operation %s: %v", op, err)
		}
		switch kind {
		case wire.KindStdout, wire.KindStderr:
			stdout += string(p)
		case wire.KindFailure:
			t.Fatalf("%s failed: %s, want a reply", op, p)
		case wire.KindReply:
			if err := json.Unmarshal(p, &out); err != nil {
				t.Fatal(err)
			}
			return out, stdout
		default:
		}
	}
}

func (s *sandbox) sh(script string) (runtime.Result, string) {
	s.t.Helper()
	return ask[runtime.Result](s.t, s.open(), wire.OpExec, wire.Command{Argv: []string{"sh", "-c", script}, Cwd: "/"})
}

func (s *sandbox) wantEnd() {
	s.t.Helper()
	select {
	case <-s.done:
		if code := s.cmd.ProcessState.ExitCode(); code != 0 {
			s.t.Errorf("the guest ended with %v, want exit code 0", s.cmd.ProcessState)
		}
	case <-time.After(bound):
		s.t.Fatal("the guest still runs, want its end")
	}
}

func TestGuestServesWithThreeCapabilities(t *testing.T) {
	t.Parallel()
	s := startGuest(t)
	pong, _ := ask[wire.Pong](t, s.open(), wire.OpPing, nil)
	if pong.Version != wire.Version || pong.Kill != "tag" {
		t.Errorf("ping = %+v, want version %d and kill by tag", pong, wire.Version)
	}
	r, out := s.sh("id -u; " +
		"grep -E 'Cap(Prm|Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status; cat /proc/1/environ 2>&1; env")
	if r.Ending != runtime.Exited || len(out) < 5 || out[:5] != "1000\n" {
		t.Errorf("id = %+v, %q; want exited and uid 1000 first", r, out)
	}
	if strings.Contains(out, "SECRET") || !strings.Contains(out, "CapPrm:\t0000000000000000") ||
		!strings.Contains(out, "NoNewPrivs:\t1") {
		t.Errorf("status and environment = %q, want no SECRET, no CapPrm and NoNewPrivs 1", out)
	}
	ask[struct{}](t, s.open(), wire.OpEnd, nil)
	s.wantEnd()
}

func TestGuestIgnoresSignals(t *testing.T) {
	t.Parallel()
	s := startGuest(t)
	s.sh("true")
	// Signals from commands are refused. Those from a parent namespace arrive.
	s.sh("for i in $(seq 1 64); do kill -$i 1; done")
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case syscall.SIGKILL, syscall.SIGSTOP, syscall.SIGSEGV, syscall.SIGBUS, syscall.SIGFPE:
			continue // cannot be ignored
		default:
		}
		if err := s.cmd.Process.Signal(sig); err != nil {
			t.Fatalf("signal %d: %v", int(sig), err)
		}
	}
	if r, out := s.sh("echo alive"); r.Ending != runtime.Exited || out != "alive\n" {
		t.Errorf("echo after the signals = %+v, %q; want exited and alive", r, out)
	}
}

func TestGuestReapsOrphans(t *testing.T) {
	t.Parallel()
	s := startGuest(t)
	for range 5 {
		if r, _ := s.sh("for i in 1 2 3 4; do (setsid sh -c 'sleep 0.01' &); done; sleep 0.05"); r.Unclean {
			t.Errorf("result = %+v, want a clean one", r)
		}
	}
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) {
		_, out := s.sh("cat /proc/[0-9]*/stat | grep -c ' Z '; true")
		if out == "0\n" {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%s zombies, want 0", strings.TrimSpace(out))
		}
	}
}

func TestGuestEndsWithoutHost(t *testing.T) {
	t.Parallel()
	s := startGuest(t, "--alone", "3s")
	k := s.open() // an open stream shows a host, and so do parked ones
	defer k.Close()
	select {
	case <-s.done:
		t.Fatal("the guest ended with a host connected, want it to run")
	case <-time.After(4 * time.Second):
	}
	s.l.Close()
	k.Close()
	s.wantEnd()
}

func TestGuestReconnectsToNewHost(t *testing.T) {
	t.Parallel()
	s := startGuest(t)
	start, _ := ask[wire.Shell](t, s.open(), wire.OpStart,
		wire.Command{ID: "on", Argv: []string{"sleep", "1000"}, Cwd: "/"})
	s.l.Close()
	l, err := guestconn.Listen(filepath.Join(s.dir, "host.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	l.Expect(s.cmd.Process.Pid)
	s.l = l
	got, _ := ask[wire.Shell](t, s.open(), wire.OpShell, wire.ShellRef{ID: "on"})
	if got.Result != nil || !got.StartedAt.Equal(start.StartedAt) {
		t.Errorf("shell = %+v, want no result and started at %v", got, start.StartedAt)
	}
}

// bridgeProcess is the stdio of a bridge.
type bridgeProcess struct {
	io.ReadCloser
	in  io.WriteCloser
	end func() error
}

func startBridge(cmd *exec.Cmd) (*bridgeProcess, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	end := sync.OnceValue(func() error { return errors.Join(cmd.Process.Kill(), in.Close(), cmd.Wait()) })
	return &bridgeProcess{out, in, end}, nil
}

func (b *bridgeProcess) Write(p []byte) (int, error) { return b.in.Write(p) }
func (b *bridgeProcess) Close() error                { return b.end() }

// bridged is a guest that is reached through bridges.
type bridged struct {
	*sandbox
	mux *guestconn.Mux

	mu      sync.Mutex
	bridges []*os.Process
	down    bool // no bridge can be started
}

func startBridged(t *testing.T, args ...string) *bridged {
	t.Helper()
	b := &bridged{sandbox: startGuest(t, append([]string{"--stdio"}, args...)...)}
	for end := time.Now().Add(bound); ; time.Sleep(10 * time.Millisecond) { // until it listens
		if _, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", b.cmd.Process.Pid, bridgeSocket())); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the guest does not listen, want a socket in time")
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	mux, err := guestconn.DialMux(ctx, t.Context(), guestconn.Dialer{Dial: b.dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mux.Close() })
	b.mux = mux
	return b
}

func (b *bridged) dial(context.Context) (io.ReadWriteCloser, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	self, err := os.Executable()
	if b.down {
		err = errors.New("the engine is down")
	}
	if err != nil {
		return nil, err
	}
	args := []string{"-t", strconv.Itoa(b.cmd.Process.Pid), "-m", self}
	cmd := exec.Command("nsenter", append(args, wire.BridgeCommand()[1:]...)...)
	cmd.Env = append(os.Environ(), roleEnv+"=guest")
	cmd.Stderr = os.Stderr
	p, err := startBridge(cmd)
	if err == nil {
		b.bridges = append(b.bridges, cmd.Process)
	}
	return p, err
}

// cut kills the bridges. If it is final, no other can be started.
func (b *bridged) cut(final bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.down = final
	for _, p := range b.bridges {
		_ = p.Kill()
	}
	b.bridges = nil
}

func (b *bridged) open() net.Conn {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), bound)
	defer cancel()
	nc, err := b.mux.Open(ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	return nc
}

func TestBridgeReachesGuest(t *testing.T) {
	t.Parallel()
	b := startBridged(t, "--alone", "5m")
	if pong, _ := ask[wire.Pong](t, b.open(), wire.OpPing, nil); pong.Version != wire.Version {
		t.Errorf("ping = %+v, want version %d", pong, wire.Version)
	}
	r, text := ask[runtime.Result](t, b.open(), wire.OpExec,
		wire.Command{Argv: []string{"sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"}, Cwd: "/"})
	if r.Ending != runtime.Exited || len(text) != 3_000_000 {
		t.Errorf("output = %+v with %d bytes, want exited with 3000000", r, len(text))
	}
	ask[struct{}](t, b.open(), wire.OpEnd, nil)
	b.wantEnd()
}

// A command in the foreground notices nothing when its bridge is killed and replaced.
func TestCommandSurvivesItsBridge(t *testing.T) {
	t.Parallel()
	b := startBridged(t, "--alone", "5m")
	const lines = 200_000
	done := make(chan struct{})
	go func() {
		defer close(done)
		r, text := ask[runtime.Result](t, b.open(), wire.OpExec,
			wire.Command{Argv: []string{"sh", "-c", "seq " + strconv.Itoa(lines) + "; sleep 1; echo end; exit 7"}, Cwd: "/"})
		var want strings.Builder
		for i := range lines {
			fmt.Fprintln(&want, i+1)
		}
		want.WriteString("end\n")
		if r.Ending != runtime.Exited || r.ExitCode != 7 || text != want.String() {
			t.Errorf("got %+v and %d bytes, want exit code 7 and %d", r, len(text), want.Len())
		}
	}()
	for cuts := 0; ; cuts++ {
		select {
		case <-done:
			if cuts < 2 {
				t.Errorf("%d cuts, want some", cuts)
			}
			return
		case <-time.After(200 * time.Millisecond): // somewhere in the transfer
			b.cut(false)
		}
	}
}

// Commands cannot reach the socket of bridges.
func TestCommandsCannotReachBridgeSocket(t *testing.T) {
	t.Parallel()
	b := startBridged(t, "--alone", "5m")
	r, text := ask[runtime.Result](t, b.open(), wire.OpExec,
		wire.Command{Argv: []string{"sh", "-c", "stat " + bridgeSocket() + " 2>&1"}, Cwd: "/"})
	if r.ExitCode != 1 || !strings.Contains(text, "Permission denied") {
		t.Errorf("stat: %+v, %q; want no permission", r, text)
	}
}

// A host that is connected and sends no request counts as present. Without a connection the guest
// ends after its orphan timeout, although a stream may still be resumed.
func TestBridgedGuestEndsWithoutHost(t *testing.T) {
	t.Parallel()
	b := startBridged(t, "--alone", "3s")
	nc := b.open()
	defer nc.Close()
	select {
	case <-b.done:
		t.Fatal("the guest ended with a host connected, want it to run")
	case <-time.After(4 * time.Second):
	}
	b.cut(true)
	b.wantEnd()
}

func TestParseInitArguments(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for _, args := range [][]string{nil, {"x"}, {"init", "x"}, {"init", "--alone", "-1s"}, {"init", "--alone", "x"},
		{"bridge", "x"}, {"version", "x"}} {
		var bad usageError
		if err := run(t.Context(), args, log); !errors.As(err, &bad) {
			t.Errorf("run(%q) = %v, want a usage error", args, err)
		}
	}
	if o, err := parseInit(nil); err != nil || o.alone != runtime.DefaultOrphanTimeout || o.stdio {
		t.Errorf("parseInit = %+v, %v; want the default timeout and no stdio", o, err)
	}
}
