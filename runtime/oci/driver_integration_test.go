//go:build integration

package oci

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"orchestrator/runtime"
)

const owner = "owner-oci-test"

// patience is far more than anything here takes on a busy machine.
const patience = time.Minute

var standin = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "orchestrator-oci-")
	if err != nil {
		return "", err
	}
	atEnd = func() { _ = os.RemoveAll(dir) }
	path := filepath.Join(dir, "guest")
	return path, build(path, "")
})

func build(path, arch string) error {
	cmd := exec.Command("go", "build", "-o", path, "./testdata/standin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if arch != "" {
		cmd.Env = append(cmd.Env, "GOARCH="+arch)
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the stand-in: %w: %s", err, out)
	}
	return nil
}

// bench is a state directory and a driver on it.
type bench struct {
	*Driver
	state string
	guest string
}

func newBench(t testing.TB) bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	if os.Getenv("ORCHESTRATOR_TEST_ROOTFS") == "" {
		t.Skip("ORCHESTRATOR_TEST_ROOTFS is not given")
	}
	guest, err := standin()
	if err != nil {
		t.Fatal(err)
	}
	b := bench{state: t.TempDir(), guest: guest}
	b.Driver = b.another(t)
	t.Cleanup(func() {
		for _, id := range b.ids(t) {
			if err := b.Remove(context.Background(), id); err != nil {
				t.Errorf("clean up: %v", err)
			}
		}
		if err := b.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		b.wantNothingLeft(t)
	})
	return b
}

// another is a second driver on the same state, as after a restart.
func (b bench) another(t testing.TB) *Driver {
	t.Helper()
	d, err := New(t.Context(), Options{
		StateDir: b.state, GuestPath: b.guest, Runtime: os.Getenv("ORCHESTRATOR_TEST_RUNTIME"),
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (b bench) ids(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	var ids []string
	for _, e := range entries {
		if runtime.ValidID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids
}

// wantNothingLeft looks at what the driver makes outside its own folders.
func (b bench) wantNothingLeft(t testing.TB) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), b.state) {
		t.Errorf("mounts are left below %s:\n%s", b.state, mounts)
	}
	for _, dir := range []string{b.cells, b.runtime.Root} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			t.Errorf("left: %s", filepath.Join(dir, e.Name()))
		}
	}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "runc" && e.Name() != ".skeleton" {
			t.Errorf("left: %s", filepath.Join(b.dir, e.Name()))
		}
	}
}

func wantNoCgroup(t testing.TB, id string) {
	t.Helper()
	dirs, err := cgroupsOf(id)
	if err != nil {
		t.Fatal(err)
	}
	if len(dirs) > 0 {
		t.Errorf("cgroups are left: %v", dirs)
	}
}

var count = 0

func specFor(t testing.TB) runtime.Spec {
	count++
	id := fmt.Sprintf("t%d-%d", os.Getpid(), count)
	for len(id) < 8 {
		id += "x"
	}
	return runtime.Spec{
		ID: id, Owner: owner, Template: "base", Build: "test",
		Image:  runtime.Image{Ref: "test", Root: os.Getenv("ORCHESTRATOR_TEST_ROOTFS")},
		Limits: runtime.Limits{MemoryBytes: 128 << 20, TmpBytes: 4 << 20, ScratchBytes: 4 << 20, CPUs: 1.5, Pids: 128, OpenFiles: 512},
	}
}

func (b bench) make(t testing.TB) *sandbox {
	t.Helper()
	s, err := b.Create(t.Context(), specFor(t))
	if err != nil {
		t.Fatal(err)
	}
	return s.(*sandbox)
}

type answer struct {
	Output string `json:"output"`
	Error  string `json:"error"`
	Errno  int    `json:"errno"`
}

// ask has the stand-in do one thing.
func ask(t testing.TB, s runtime.Sandbox, request map[string]any) (answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := s.Open(ctx)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(conn).Encode(request); err != nil {
		return answer{}, err
	}
	var a answer
	return a, json.NewDecoder(bufio.NewReader(conn)).Decode(&a)
}

// sh runs a shell line inside as uid and returns what it wrote.
func sh(t testing.TB, s runtime.Sandbox, uid int, line string) answer {
	t.Helper()
	a, err := ask(t, s, map[string]any{"argv": []string{"/bin/sh", "-c", line}, "uid": uid})
	if err != nil {
		t.Fatalf("%s: %v", line, err)
	}
	return a
}

func wantDone(t testing.TB, s runtime.Sandbox) {
	t.Helper()
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("the sandbox's end was not noticed")
	}
}

func TestWallsFromInside(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	for _, c := range []struct {
		what, line, want string
		uid              int
	}{
		{"guest's capabilities", "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/1/status | cut -f2 | tr '\\n' ' '",
			"0000000000000000 00000000000000e0 00000000000000e0 00000000000000e0 0000000000000000 ", 0},
		{"commands' capabilities", "grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status | cut -f2 | sort -u", "0000000000000000\n", 1000},
		{"no new privileges", "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n", 1000},
		{"filter", "grep Seccomp: /proc/self/status", "Seccomp:\t2\n", 1000},
		{"host name", "cat /proc/sys/kernel/hostname /etc/hostname", "sandbox\nsandbox\n", 1000},
		{"interfaces", "ls /sys/class/net; cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '", "lo\nlo\n", 1000},
		{"loopback is up", "cat /sys/class/net/lo/flags", "0x9\n", 1000},
		{"environment", "env | cut -d= -f1 | sort", "HOME\nLANG\nPATH\nPWD\n", 0},
		{"root", "touch /x /etc/x /usr/x 2>&1 | grep -c 'Read-only file system'", "3\n", 0},
		{"root's flags", "awk '$5==\"/\"{print $6}' /proc/self/mountinfo | tr , '\\n' | grep -cxE 'ro|nosuid|nodev'", "3\n", 1000},
		{"no path of the host", "grep -c " + filepath.Dir(os.Getenv("ORCHESTRATOR_TEST_ROOTFS")) + " /proc/self/mountinfo", "0\n", 1000},
		{"run dir", "ls /run/orchestrator 2>&1", "ls: cannot open directory '/run/orchestrator': Permission denied\n", 1000},
		{"run dir is read-only", "touch /run/orchestrator/x 2>&1", "touch: cannot touch '/run/orchestrator/x': Read-only file system\n", 0},
		{"sysctls", "echo 0 2>&1 >/proc/sys/kernel/shm_rmid_forced | grep -c Read-only; cat /proc/sys/kernel/shm_rmid_forced", "1\n1\n", 0},
		{"open files", "ulimit -Hn", "512\n", 1000},
		{"core files", "ulimit -Hc", "0\n", 1000},
		{"tmp", "stat -c '%a %U' /tmp; head -c 9000000 /dev/zero >/tmp/x 2>/dev/null; stat -c %s /tmp/x; rm /tmp/x", "1777 root\n4194304\n", 1000},
		{"home", "stat -c '%u %g' /home/user; head -c 9000000 /dev/zero >/home/user/x 2>/dev/null; stat -c %s /home/user/x; rm /home/user/x",
			"1000 1000\n4194304\n", 1000},
		{"scratch", "stat -c '%u %g' /workspace; head -c 9000000 /dev/zero >/workspace/x 2>/dev/null; stat -c %s /workspace/x; rm /workspace/x",
			"1000 1000\n4194304\n", 1000},
		{"run", "touch /run/x 2>&1", "touch: cannot touch '/run/x': Permission denied\n", 1000},
		{"masked", "cat /proc/kcore /proc/keys 2>/dev/null | wc -c; ls /sys/firmware | wc -l", "0\n0\n", 0},
		{"no block device", "mknod /tmp/d b 254 0 2>&1", "mknod: /tmp/d: Operation not permitted\n", 0},
		{"mounting", "mount -t tmpfs none /tmp 2>&1 | grep -c denied", "1\n", 0},
		{"a terminal", "ls /dev/ptmx /dev/pts/ptmx", "/dev/ptmx\n/dev/pts/ptmx\n", 1000},
		{"signals", "cat /proc/1/oom_score_adj", "500\n", 1000},
	} {
		if got := sh(t, s, c.uid, c.line); got.Output != c.want {
			t.Errorf("%s: %q (%s), want %q", c.what, got.Output, got.Error, c.want)
		}
	}
}

func TestCapsOnTheHost(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	dirs, err := cgroupsOf(s.ID())
	if err != nil || len(dirs) == 0 {
		t.Fatalf("cgroups %v, %v", dirs, err)
	}
	// Name of a cap on v1 or v2, and what it has to be.
	want := map[string]string{
		"memory.limit_in_bytes": "134217728", "memory.memsw.limit_in_bytes": "134217728", "cpu.cfs_quota_us": "150000",
		"memory.max": "134217728", "memory.swap.max": "0", "cpu.max": "150000 100000", "pids.max": "128",
	}
	seen := 0
	for _, dir := range dirs {
		for name, value := range want {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				continue
			}
			seen++
			if strings.TrimSpace(string(got)) != value {
				t.Errorf("%s is %s, want %s", filepath.Join(dir, name), got, value)
			}
		}
	}
	if seen < 4 {
		t.Errorf("%d caps were found in %v", seen, dirs)
	}
	if a := sh(t, s, 0, "ls /run/orchestrator/cgroup/*/cgroup.procs"); a.Error != "" {
		t.Errorf("no cgroups inside: %+v", a)
	}
}

func TestSystemCallsInside(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	const stream, raw, dgram = unix.SOCK_STREAM, unix.SOCK_RAW, unix.SOCK_DGRAM
	for _, c := range []struct {
		what string
		call []uint64
		want unix.Errno
	}{
		{"unix", []uint64{unix.SYS_SOCKET, unix.AF_UNIX, stream, 0}, 0},
		{"tcp", []uint64{unix.SYS_SOCKET, unix.AF_INET, stream, 0}, 0},
		{"udp 6", []uint64{unix.SYS_SOCKET, unix.AF_INET6, dgram, 0}, 0},
		{"route", []uint64{unix.SYS_SOCKET, unix.AF_NETLINK, raw, unix.NETLINK_ROUTE}, 0},
		{"netfilter", []uint64{unix.SYS_SOCKET, unix.AF_NETLINK, raw, unix.NETLINK_NETFILTER}, unix.EPERM},
		{"vsock", []uint64{unix.SYS_SOCKET, unix.AF_VSOCK, stream, 0}, unix.EPERM},
		{"packet", []uint64{unix.SYS_SOCKET, unix.AF_PACKET, raw, 0}, unix.EPERM},
		{"alg", []uint64{unix.SYS_SOCKET, unix.AF_ALG, unix.SOCK_SEQPACKET, 0}, unix.EPERM},
		{"bluetooth", []uint64{unix.SYS_SOCKET, unix.AF_BLUETOOTH, raw, 0}, unix.EPERM},
		{"xdp", []uint64{unix.SYS_SOCKET, unix.AF_XDP, raw, 0}, unix.EPERM},
		{"clone3", []uint64{unix.SYS_CLONE3, 0, 0, 0}, unix.ENOSYS},
		{"unshare", []uint64{unix.SYS_UNSHARE, unix.CLONE_NEWUSER, 0, 0}, unix.EPERM},
		{"io_uring", []uint64{unix.SYS_IO_URING_SETUP, 1, 0, 0}, unix.EPERM},
		{"bpf", []uint64{unix.SYS_BPF, 0, 0, 0}, unix.EPERM},
		{"userfaultfd", []uint64{unix.SYS_USERFAULTFD, 1, 0, 0}, unix.EPERM},
		{"keyctl", []uint64{unix.SYS_KEYCTL, 0, 0, 0}, unix.EPERM},
		{"open by handle", []uint64{unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0}, unix.EPERM},
		{"an unknown call", []uint64{9999, 0, 0, 0}, unix.ENOSYS},
		// Let through, these find that pid 1 is not traced.
		{"ptrace options", []uint64{unix.SYS_PTRACE, unix.PTRACE_SETOPTIONS, 1, 0, unix.PTRACE_O_EXITKILL}, unix.ESRCH},
		{"trace exit", []uint64{unix.SYS_PTRACE, unix.PTRACE_SETOPTIONS, 1, 0, unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACEEXIT}, unix.EPERM},
		{"trace exit the old way", []uint64{unix.SYS_PTRACE, 21, 1, 0, unix.PTRACE_O_TRACEEXIT}, unix.EPERM},
		{"seize", []uint64{unix.SYS_PTRACE, unix.PTRACE_SEIZE, 999999, 0, 0}, unix.ESRCH},
		{"seize with trace exit", []uint64{unix.SYS_PTRACE, unix.PTRACE_SEIZE, 999999, 0, unix.PTRACE_O_TRACEEXIT}, unix.EPERM},
	} {
		call := slices.Concat(c.call, make([]uint64, 7-len(c.call)))
		got, err := ask(t, s, map[string]any{"call": call})
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		if unix.Errno(got.Errno) != c.want {
			t.Errorf("%s: %v, want %v", c.what, unix.Errno(got.Errno), c.want)
		}
	}
}

// A program of the other word size finds no system call table that it may use.
func TestForeignArchitectureIsKilled(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	dir := t.TempDir()
	native, foreign := filepath.Join(dir, "native"), filepath.Join(dir, "foreign")
	if err := errors.Join(build(native, ""), build(foreign, "386"), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(foreign).CombinedOutput(); err != nil {
		t.Skipf("this host runs no 32-bit programs: %v %s", err, out)
	}
	if err := s.Bind(t.Context(), runtime.Binding{Source: dir, ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, s, 1000, "/workspace/native"); got.Output != "hello from /workspace/native\n" {
		t.Errorf("native: %+v", got)
	}
	if got := sh(t, s, 1000, "/workspace/foreign"); got.Error == "" || strings.Contains(got.Output, "hello") {
		t.Errorf("foreign: %+v", got)
	}
	if err := s.Unbind(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWorkspaceComesAndGoes(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777), os.WriteFile(filepath.Join(dir, "file"), []byte("mine"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, ro := range []bool{true, false} {
		if err := s.Bind(t.Context(), runtime.Binding{Source: dir, ReadOnly: ro}); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, s, 1000, "cat /workspace/file"); got.Output != "mine" {
			t.Errorf("read-only %v: read %+v", ro, got)
		}
		if got := sh(t, s, 1000, "touch /workspace/new"); (got.Error != "") != ro {
			t.Errorf("read-only %v: wrote %+v", ro, got)
		}
		if err := s.Unbind(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, s, 1000, "ls /workspace"); got.Output != "" {
			t.Errorf("after it is taken away: %+v", got)
		}
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for source, class := range map[string]func(error) bool{
		"relative":                 errdefs.IsInvalidArgument,
		link:                       errdefs.IsInvalidArgument,
		filepath.Join(dir, "file"): errdefs.IsInvalidArgument,
		filepath.Join(dir, "none"): errdefs.IsNotFound,
	} {
		if err := s.Bind(t.Context(), runtime.Binding{Source: source}); !class(err) {
			t.Errorf("bind %s: %v", source, err)
		}
	}
}

func TestListAdoptAndRemoveTwice(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	pid := s.init.pid
	want := runtime.Found{ID: s.ID(), Template: "base", Build: "test", Running: true}
	if got, err := b.List(t.Context(), owner); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("list: %+v, %v", got, err)
	}
	if got, err := b.List(t.Context(), "somebody-else"); err != nil || len(got) != 0 {
		t.Errorf("list of another owner: %+v, %v", got, err)
	}
	if _, err := b.Adopt(t.Context(), s.ID()); !errdefs.IsAlreadyExists(err) {
		t.Errorf("adopting what is held: %v", err)
	}
	if _, err := b.Create(t.Context(), runtime.Spec{
		ID: s.ID(), Owner: owner, Template: "base", Image: runtime.Image{Root: "/"},
	}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("creating it again: %v", err)
	}
	if _, err := b.Adopt(t.Context(), "not-there"); !errdefs.IsNotFound(err) {
		t.Errorf("adopting nothing: %v", err)
	}
	dir := t.TempDir()
	if err := s.Bind(t.Context(), runtime.Binding{Source: dir}); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.Done():
		t.Error("letting go looks like an end")
	default:
	}

	d := b.another(t)
	defer d.Close()
	again, err := d.Adopt(t.Context(), s.ID())
	if err != nil {
		t.Fatal(err)
	}
	if got := again.(*sandbox).init.pid; got != pid {
		t.Errorf("process %d became %d", pid, got)
	}
	if got := sh(t, again, 1000, "echo here"); got.Output != "here\n" {
		t.Errorf("after the change of hosts: %+v", got)
	}
	if err := again.Unbind(t.Context()); err != nil {
		t.Errorf("unbind what the other bound: %v", err)
	}
	for range 2 {
		if err := again.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
		if err := d.Remove(t.Context(), s.ID()); err != nil {
			t.Error(err)
		}
	}
	wantDone(t, again)
	wantNoCgroup(t, s.ID())
	if got, err := d.List(t.Context(), owner); err != nil || len(got) != 0 {
		t.Errorf("list at the end: %+v, %v", got, err)
	}
	if _, err := d.Adopt(t.Context(), s.ID()); !errdefs.IsNotFound(err) {
		t.Errorf("adopting what is gone: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the workspace: %v", err)
	}
}

func TestEndOfTheFirstProcess(t *testing.T) {
	b := newBench(t)
	for what, end := range map[string]func(*sandbox){
		"killed":    func(s *sandbox) { _ = unix.Kill(s.init.pid, unix.SIGKILL) },
		"by itself": func(s *sandbox) { _, _ = ask(t, s, map[string]any{"end": true}) },
	} {
		t.Run(what, func(t *testing.T) {
			s := b.make(t)
			sh(t, s, 0, "true")
			end(s)
			wantDone(t, s)
			if _, err := s.Open(t.Context()); !errdefs.IsUnavailable(err) {
				t.Errorf("open: %v", err)
			}
			if got, err := b.List(t.Context(), owner); err != nil || len(got) != 1 || got[0].Running {
				t.Errorf("list: %+v, %v", got, err)
			}
			if err := s.Release(); err != nil {
				t.Error(err)
			}
			if _, err := b.Adopt(t.Context(), s.ID()); !errdefs.IsNotFound(err) {
				t.Errorf("adopt: %v", err)
			}
			if err := b.Remove(t.Context(), s.ID()); err != nil {
				t.Error(err)
			}
			wantNoCgroup(t, s.ID())
		})
	}
}

// Where the orchestrator is PID 1 or a subreaper, first processes become its children, and nobody else collects them.
func TestWhatTheRuntimeLeavesIsReaped(t *testing.T) {
	b := newBench(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0) }()
	s := b.make(t)
	if err := unix.Kill(s.init.pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantDone(t, s)
	if got, err := startStat(s.init.pid); err == nil && strings.Contains(got, "(guest) Z") {
		t.Errorf("it is a zombie: %s", got)
	}
}

func startStat(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return string(text), err
}

func TestOpenGivesUpWhenTheSandboxEnds(t *testing.T) {
	b := newBench(t)
	spec := specFor(t)
	spec.Entrypoint = []string{"/bin/sh", "-c", "echo no guest here >&2; exec sleep 600"}
	s, err := b.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := s.Open(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("open without a guest: %v", err)
	}
	for end := time.Now().Add(patience); s.(*sandbox).said.String() == "" && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	failed := make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := s.Open(context.Background())
		failed <- err
	})
	if err := unix.Kill(s.(*sandbox).init.pid, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if err := <-failed; !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "no guest here") {
		t.Errorf("open while it ended: %v", err)
	}
}

func TestCreateThatFailsLeavesNothing(t *testing.T) {
	b := newBench(t)
	for what, c := range map[string]struct {
		entrypoint []string
		says       string
	}{
		"an entrypoint that is not there":    {[]string{"/no/such/entrypoint"}, "/no/such/entrypoint"},
		"an entrypoint that ends with words": {[]string{"/bin/sh", "-c", "echo the workspace is odd >&2; exit 73"}, "the workspace is odd"},
	} {
		t.Run(what, func(t *testing.T) {
			spec := specFor(t)
			spec.Entrypoint = c.entrypoint
			s, err := b.Create(t.Context(), spec)
			if err == nil {
				// It ended a moment later: then the first to open a stream is told.
				_, err = s.Open(t.Context())
				if derr := s.Destroy(t.Context()); derr != nil {
					t.Error(derr)
				}
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("error is %v, want it to say %q", err, c.says)
			}
			wantNoCgroup(t, spec.ID)
			b.wantNothingLeft(t)
		})
	}
}

func TestCreateThatIsCancelledLeavesNothing(t *testing.T) {
	b := newBench(t)
	for _, after := range []time.Duration{time.Millisecond, 5 * time.Millisecond, 15 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
		spec := specFor(t)
		ctx, cancel := context.WithTimeout(t.Context(), after)
		s, err := b.Create(ctx, spec)
		cancel()
		if err == nil {
			err = s.Destroy(t.Context())
		} else if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %s: %v", after, err)
		} else {
			err = nil
		}
		if err != nil {
			t.Errorf("after %s: %v", after, err)
		}
		wantNoCgroup(t, spec.ID)
		b.wantNothingLeft(t)
	}
}

func TestSandboxesInParallel(t *testing.T) {
	b := newBench(t)
	var wg sync.WaitGroup
	for range 4 {
		spec := specFor(t)
		wg.Go(func() {
			s, err := b.Create(t.Context(), spec)
			if err != nil {
				t.Error(err)
				return
			}
			if a, err := ask(t, s, map[string]any{"argv": []string{"/bin/echo", "x"}, "uid": 1000}); err != nil || a.Output != "x\n" {
				t.Errorf("%+v, %v", a, err)
			}
			var both sync.WaitGroup
			for range 2 {
				both.Go(func() {
					if err := s.Destroy(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
			both.Wait()
			wantNoCgroup(t, spec.ID)
		})
	}
	wg.Wait()
	b.wantNothingLeft(t)
}

func pidIn(t testing.TB, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}
