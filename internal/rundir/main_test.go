package rundir

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// The test binary has three roles: the process that go test starts, the host, and the guest. The
// host runs the tests in a separate mount namespace, so that no mount outlives them. The guest is
// the init of a sandbox and runs from the directory under test.
const (
	roleVar   = "CELL_TEST_ROLE"
	roleHost  = "host"
	roleGuest = "guest"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case roleHost:
		goleak.VerifyTestMain(m)
	case roleGuest:
		err := beGuest(os.Args[1], os.Args[2], os.Args[3])
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
	if os.Geteuid() != 0 {
		fmt.Println("SKIP: mounting needs root")
		os.Exit(0)
	}
	runtime.LockOSThread() // the death signal is tied to the thread that starts the child
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), roleVar+"="+roleHost)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}

type order struct{ Do, Path string }

type outcome struct {
	Out   string
	Errno syscall.Errno
}

// beGuest mounts run (read-only) and slot (writable) in root like a sandbox, both as slaves, and
// carries out the orders that it receives from the host.
func beGuest(run, slot, root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	for name, source := range map[string]string{"run": run, "workspace": slot} {
		target := filepath.Join(root, name)
		if err := os.Mkdir(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
			return err
		}
		if err := unix.Mount("", target, "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
			return err
		}
	}
	if err := unix.Mount("", filepath.Join(root, "run"), "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return err
	}
	serve := func(c net.Conn) bool {
		var o order
		if err := json.NewDecoder(c).Decode(&o); err != nil {
			return false
		}
		out, err := carryOut(o.Do, filepath.Join(root, o.Path))
		var errno syscall.Errno
		errors.As(err, &errno)
		_ = json.NewEncoder(c).Encode(outcome{out, errno})
		return false
	}
	return guestconn.Park(
		context.Background(),
		filepath.Join(root, "run", filepath.Base(wire.HostSocket)),
		4,
		serve,
		func() {},
	)
}

func carryOut(do, path string) (string, error) {
	switch do {
	case "read":
		b, err := os.ReadFile(path)
		return string(b), err
	case "write":
		return "", os.WriteFile(path, []byte("from inside"), 0o644)
	case "remove":
		return "", os.Remove(path)
	case "mkdir":
		return "", os.Mkdir(path, 0o755)
	case "rmdir":
		return "", unix.Rmdir(path)
	case "list":
		entries, err := os.ReadDir(path)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return strings.Join(names, " "), err
	case "chdir":
		return "", os.Chdir(path)
	}
	return "", errors.ErrUnsupported
}

const patience = time.Minute

func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// sandbox is a process that runs as the init of a directory under test.
type sandbox struct {
	cmd  *exec.Cmd
	done chan struct{}
}

func startSandbox(t *testing.T, c *Dir) *sandbox {
	t.Helper()
	cmd := exec.Command(filepath.Join(c.RunDir(), "guest"), c.RunDir(), c.WorkspaceDir(), t.TempDir())
	cmd.Env = append(os.Environ(), roleVar+"="+roleGuest)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS, Setpgid: true}
	cmd.Stderr = os.Stderr
	must(t, cmd.Start())
	s := &sandbox{cmd: cmd, done: make(chan struct{})}
	go func() { defer close(s.done); _ = cmd.Wait() }()
	t.Cleanup(s.kill)
	return s
}

func (s *sandbox) pid() int { return s.cmd.Process.Pid }

func (s *sandbox) kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

// tell sends the sandbox an order and returns the outcome.
func tell(t *testing.T, c *Dir, do, path string) outcome {
	t.Helper()
	conn, err := c.Open(soon(t))
	must(t, err)
	defer conn.Close()
	must(t, conn.SetDeadline(time.Now().Add(patience)))
	must(t, json.NewEncoder(conn).Encode(order{do, path}))
	line, err := bufio.NewReader(conn).ReadBytes('\n')
	must(t, err)
	var o outcome
	must(t, json.Unmarshal(line, &o))
	return o
}
