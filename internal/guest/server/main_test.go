package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"orchestrator/internal/cgroup"
	"orchestrator/internal/guest/wire"
	"orchestrator/runtime"
)

// The guest reaps every child of its process and looks at every process there
// is: as root the tests run as PID 1 of pid and mount namespaces of their
// own, with cgroups that the outer process made and delegated.
const (
	inChild   = "SERVER_TEST_CHILD"
	cgroupEnv = "SERVER_TEST_CGROUPS"
	bound     = 60 * time.Second
	testPids  = 200
	testMem   = 256 << 20
)

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		os.Exit(m.Run())
	}
	if os.Getenv(inChild) != "" {
		if err := settle(); err != nil {
			fmt.Fprintln(os.Stderr, "set up the test's namespaces:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	code, err := outer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests in namespaces:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// outer runs the tests in a child and removes its cgroups afterwards.
func outer() (int, error) {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inChild+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	dirs, remove := delegate(cmd.Process.Pid)
	defer remove()
	text, err := json.Marshal(dirs)
	if err != nil {
		return 1, err
	}
	if _, err := fmt.Fprintf(in, "%s\n", text); err != nil {
		return 1, err
	}
	if err := cmd.Wait(); err != nil {
		return 1, nil //nolint:nilerr // it said why itself
	}
	return 0, nil
}

// delegate moves the child to cgroups of its own and delegates from there. Where
// that cannot be done the tests run by tag alone.
func delegate(pid int) (map[string]string, func()) {
	remove := func() {}
	host, err := cgroup.Detect()
	if err != nil || host.Mode == cgroup.ModeV2 || !host.Pids || !host.Memory {
		fmt.Println("no cgroups to test with:", err)
		return nil, remove
	}
	paths, err := cgroup.Of(os.Getpid())
	if err != nil {
		fmt.Println("no cgroups to test with:", err)
		return nil, remove
	}
	var made []string
	for _, p := range paths {
		dir := filepath.Join(p, "orchestrator-test-"+strconv.Itoa(pid))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		made = append(made, dir)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			fmt.Println("no cgroups to test with:", err)
		}
	}
	d, err := cgroup.Delegate(pid, cgroup.Share{MemoryBytes: testMem, Pids: testPids})
	if err != nil {
		fmt.Println("no cgroups to test with:", err)
		d = &cgroup.Delegated{}
	}
	return d.Dirs, func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := d.Remove(ctx); err != nil {
			fmt.Println("remove the test's cgroups:", err)
		}
		for _, dir := range made {
			for range 200 {
				if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
}

// settle makes the namespaces fit: a /proc of this pid namespace, and the
// delegated cgroups in a folder as the host would bind them.
func settle() error {
	// Where the outer process went, the go command would not notice us.
	var line []byte
	for b := make([]byte, 1); ; {
		if n, err := os.Stdin.Read(b); n != 1 || err != nil {
			return fmt.Errorf("outer process is gone: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	var dirs map[string]string
	if err := json.Unmarshal(line, &dirs); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if len(dirs) == 0 {
		return nil
	}
	const at = "/mnt"
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=700"); err != nil {
		return err
	}
	for name, dir := range dirs {
		target := filepath.Join(at, name)
		if err := os.Mkdir(target, 0o700); err != nil {
			return err
		}
		if err := unix.Mount(dir, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return os.Setenv(cgroupEnv, at)
}

// both runs a test with cgroups, where there are some, and by tag.
func both(t *testing.T, f func(*testing.T, *Server)) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	if os.Getenv(cgroupEnv) != "" {
		t.Run("cgroup", func(t *testing.T) { f(t, testServer(t, true)) })
	}
	t.Run("tag", func(t *testing.T) { f(t, testServer(t, false)) })
}

// There is one process to reap in, so all tests share its two servers' reaper.
var (
	serversOnce sync.Once
	serverCG    *Server
	serverTag   *Server
	workspace   string
)

func testServer(t testing.TB, cg bool) *Server {
	t.Helper()
	serversOnce.Do(func() {
		var err error
		if workspace, err = os.MkdirTemp("", "workspace"); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(workspace, 0o777); err != nil {
			t.Fatal(err)
		}
		serverTag = newTestServer(t, nil)
		if dir := os.Getenv(cgroupEnv); dir != "" {
			tree, err := cgroup.OpenTree(dir)
			if err != nil {
				t.Fatal(err)
			}
			serverCG = newTestServer(t, tree)
		}
	})
	if cg {
		return serverCG
	}
	return serverTag
}

func newTestServer(t testing.TB, tree *cgroup.Tree) *Server {
	t.Helper()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	s, err := New(Options{Tree: tree, Workspace: workspace, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if serverTag != nil { // one reaper is all a process can have
		s.yard.forker, s.reaper = serverTag.yard.forker, serverTag.reaper
		go s.yard.run(context.Background())
		return s
	}
	go s.Run(context.Background())
	return s
}

// call is the host's side of one stream.
type call struct {
	t  testing.TB
	nc net.Conn
	c  *wire.Conn
}

func dial(t testing.TB, s *Server, op wire.Op, body any) *call {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]net.Conn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "stream")
		if ends[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	served := make(chan struct{})
	go func() { defer close(served); s.Serve(ends[1]) }()
	if err := ends[0].SetDeadline(time.Now().Add(bound)); err != nil {
		t.Fatal(err)
	}
	k := &call{t: t, nc: ends[0], c: wire.NewConn(ends[0])}
	t.Cleanup(func() {
		k.nc.Close()
		select {
		case <-served:
		case <-time.After(bound):
			t.Errorf("the stream of %s is still served", op)
		}
	})
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.c.WriteJSON(wire.KindRequest, wire.Request{Version: wire.Version, Op: op, Body: raw}); err != nil {
		t.Fatal(err)
	}
	return k
}

// answer is all that came on a stream until its last frame.
type answer struct {
	started bool
	stdout  bytes.Buffer
	stderr  bytes.Buffer
	data    bytes.Buffer
	chunks  []int64
	reply   []byte
	failure *wire.Failure
}

func (k *call) read(a *answer) bool {
	k.t.Helper()
	kind, p, err := k.c.ReadFrame()
	if err != nil {
		k.t.Fatalf("read frame: %v; had %q %q", err, tail(a.stdout.Bytes()), tail(a.stderr.Bytes()))
	}
	switch kind {
	case wire.KindStarted:
		a.started = true
	case wire.KindStdout:
		a.stdout.Write(p)
	case wire.KindStderr:
		a.stderr.Write(p)
	case wire.KindData:
		a.data.Write(p)
	case wire.KindChunk:
		var c wire.Chunk
		if err := json.Unmarshal(p, &c); err != nil {
			k.t.Fatal(err)
		}
		a.chunks = append(a.chunks, c.Offset)
	case wire.KindReply:
		a.reply = bytes.Clone(p)
		return true
	case wire.KindFailure:
		a.failure = &wire.Failure{}
		if err := json.Unmarshal(p, a.failure); err != nil {
			k.t.Fatal(err)
		}
		return true
	default:
		k.t.Fatalf("frame of kind %q", byte(kind))
	}
	return false
}

func tail(b []byte) []byte { return b[max(0, len(b)-200):] }

func (k *call) all() *answer {
	k.t.Helper()
	a := &answer{}
	for !k.read(a) {
	}
	return a
}

func (k *call) untilStarted() *answer {
	k.t.Helper()
	a := &answer{}
	for !a.started {
		if k.read(a) {
			k.t.Fatalf("ended before it started: %s %v", a.reply, a.failure)
		}
	}
	return a
}

func (a *answer) result(t testing.TB) runtime.Result {
	t.Helper()
	if a.failure != nil {
		t.Fatalf("failed: %v", a.failure)
	}
	var r runtime.Result
	if err := json.Unmarshal(a.reply, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func ask[Out any](t testing.TB, s *Server, op wire.Op, body any) Out {
	t.Helper()
	a := dial(t, s, op, body).all()
	if a.failure != nil {
		t.Fatalf("%s failed: %v", op, a.failure)
	}
	var out Out
	if err := json.Unmarshal(a.reply, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func sh(script string) wire.Command { return wire.Command{Argv: []string{"sh", "-c", script}} }

func run1(t testing.TB, s *Server, cmd wire.Command) (*answer, runtime.Result) {
	t.Helper()
	a := dial(t, s, wire.OpExec, cmd).all()
	return a, a.result(t)
}

func wantEnding(t testing.TB, r runtime.Result, ending runtime.Ending, code int) {
	t.Helper()
	if r.Ending != ending || r.ExitCode != code || r.Unclean {
		t.Errorf("ended as %+v, want %s with code %d", r, ending, code)
	}
}

// nothingLeft checks that no process has the marker among its arguments.
func nothingLeft(t testing.TB, marker string) {
	t.Helper()
	if pids := withMarker(t, marker); len(pids) > 0 {
		t.Errorf("processes %v of %s are alive", pids, marker)
	}
}

func withMarker(t testing.TB, marker string) []int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, name := range names {
		b, err := os.ReadFile(name)
		pid, _ := strconv.Atoi(strings.Split(name, "/")[2])
		if err == nil && pid != os.Getpid() && slices.ContainsFunc(bytes.Split(b, []byte{0}), func(a []byte) bool { return bytes.Contains(a, []byte(marker)) }) {
			found = append(found, pid)
		}
	}
	return found
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(bound); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}
