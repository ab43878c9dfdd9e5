package livemount

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary has three roles: the process that go test starts, the host (the tests, in a
// separate mount namespace, so that no mount outlives them), and a container with the mounted
// directory as a slave.
const (
	roleVar       = "SLOT_TEST_ROLE"
	roleHost      = "host"
	roleContainer = "container"
)

func TestMain(m *testing.M) {
	switch os.Getenv(roleVar) {
	case roleHost:
		os.Exit(m.Run())
	case roleContainer:
		if err := beContainer(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
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

// container is a process in a separate mount namespace that sees a mounted directory like a
// sandbox. It executes the requests of the test.
type container struct {
	in  io.WriteCloser
	out *bufio.Reader
}

type order struct {
	Do   string `json:"do"`
	Path string `json:"path"`
}

type outcome struct {
	Out   string        `json:"out"`
	Errno syscall.Errno `json:"errno"`
}

// startContainer starts a container with the host directory slot mounted, as a slave, at its
// /workspace.
func startContainer(t *testing.T, slot string) *container {
	t.Helper()
	root := t.TempDir()
	cmd := exec.Command("/proc/self/exe", slot, root)
	// With the race detector, a process waits a second before it ends.
	cmd.Env = append(os.Environ(), roleVar+"="+roleContainer, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	c := &container{in: in, out: bufio.NewReader(out)}
	if got := c.do(t, "ready", ""); got.Out != "ready" {
		t.Fatalf("first answer of the container = %+v, want ready", got)
	}
	return c
}

func (c *container) do(t *testing.T, what, path string) outcome {
	t.Helper()
	if err := json.NewEncoder(c.in).Encode(order{what, path}); err != nil {
		t.Fatal(err)
	}
	line, err := c.out.ReadBytes('\n')
	must(t, err)
	var o outcome
	must(t, json.Unmarshal(line, &o))
	return o
}

// wantErrno has the container do something with a path and checks the error number.
func (c *container) wantErrno(t *testing.T, what, path string, want unix.Errno) {
	t.Helper()
	if got := c.do(t, what, path); got.Errno != want {
		t.Fatalf("%s %s inside = %+v, want errno %d (%v)", what, path, got, int(want), want)
	}
}

// wantOut has the container read a path and checks the content.
func (c *container) wantOut(t *testing.T, path, want string) {
	t.Helper()
	if got := c.do(t, "read", path); got.Out != want {
		t.Fatalf("read %s inside = %+v, want %q", path, got, want)
	}
}

func beContainer(slot, root string) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	workspace := filepath.Join(root, "workspace")
	if err := os.Mkdir(workspace, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(slot, workspace, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if err := unix.Mount("", workspace, "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return err
	}
	var held []*os.File
	orders := bufio.NewReader(os.Stdin)
	for {
		line, err := orders.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var o order
		if err := json.Unmarshal(line, &o); err != nil {
			return err
		}
		out, err := obey(o.Do, filepath.Join(workspace, o.Path), &held)
		var errno syscall.Errno
		errors.As(err, &errno)
		if err := json.NewEncoder(os.Stdout).Encode(outcome{out, errno}); err != nil {
			return err
		}
	}
}

func obey(do, path string, held *[]*os.File) (string, error) {
	switch do {
	case "read":
		b, err := os.ReadFile(path)
		return string(b), err
	case "write":
		return "", os.WriteFile(path, []byte("from inside"), 0o644)
	case "open":
		f, err := os.Open(path)
		if err == nil {
			*held = append(*held, f)
		}
		return "", err
	case "close":
		var err error
		for _, f := range *held {
			err = errors.Join(err, f.Close())
		}
		*held = nil
		return "", err
	case "chdir":
		return "", os.Chdir(path)
	case "leave":
		return "", os.Chdir("/")
	case "flags":
		var st unix.Statfs_t
		err := unix.Statfs(path, &st)
		var flags []string
		for bit, name := range map[int64]string{unix.ST_RDONLY: "ro", unix.ST_NOSUID: "nosuid", unix.ST_NODEV: "nodev"} {
			if st.Flags&bit != 0 {
				flags = append(flags, name)
			}
		}
		return strings.Join(flags, " "), err
	}
	return do, nil
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// newSlot makes a directory like a sandbox's, below a mount with the given propagation.
func newSlot(t *testing.T, parent uintptr) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("state", dir, "tmpfs", 0, "size=1m"))
	must(t, unix.Mount("", dir, "", parent, ""))
	t.Cleanup(func() { must(t, Sweep(t.Context(), dir, time.Second)) })
	slot := filepath.Join(dir, "slot")
	must(t, os.Mkdir(slot, 0o700))
	must(t, MakeTmpfs(slot, Tmpfs{Bytes: 1 << 20, Mode: 0o755, UID: 1000, GID: 1000}))
	return slot
}

// workspace returns a directory with one file that contains the owner.
func workspace(t *testing.T, owner string) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "owner"), []byte(owner), 0o644))
	return dir
}
