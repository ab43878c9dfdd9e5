//go:build integration

package oci

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestIsolationFromInside(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	for _, c := range []struct {
		what, line, want string
		uid              int
	}{
		{"guest's capabilities", "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/1/status | cut -f2 | tr '\\n' ' '",
			"0000000000000000 00000000000000e0 00000000000000e0 00000000000000e0 0000000000000000 ", 0},
		{"commands' capabilities", "grep -E '^Cap(Prm|Eff|Amb)' /proc/self/status | cut -f2 | sort -u", "0000000000000000\n",
			1000},
		{"no new privileges", "grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n", 1000},
		{"filter", "grep Seccomp: /proc/self/status", "Seccomp:\t2\n", 1000},
		{"host name", "cat /proc/sys/kernel/hostname /etc/hostname", "sandbox\nsandbox\n", 1000},
		{"interfaces", "ls /sys/class/net; cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '", "lo\nlo\n", 1000},
		{"loopback is up", "cat /sys/class/net/lo/flags", "0x9\n", 1000},
		{"environment", "env | cut -d= -f1 | sort", "HOME\nLANG\nPATH\nPWD\n", 0},
		{"root", "touch /x /etc/x /usr/x 2>&1 | grep -c 'Read-only file system'", "3\n", 0},
		{"root's flags", "awk '$5==\"/\"{print $6}' /proc/self/mountinfo | tr , '\\n' | grep -cxE 'ro|nosuid|nodev'", "3\n",
			1000},
		{"no path of the host", "grep -cF " + os.Getenv("ORCHESTRATOR_TEST_ROOTFS") + " /proc/self/mountinfo", "0\n", 1000},
		{"run dir", "ls /run/orchestrator 2>&1", "ls: cannot open directory '/run/orchestrator': Permission denied\n", 1000},
		{"run dir is read-only", "touch /run/orchestrator/x 2>&1",
			"touch: cannot touch '/run/orchestrator/x': Read-only file system\n", 0},
		{"sysctls", "echo 0 2>&1 >/proc/sys/kernel/shm_rmid_forced | grep -c Read-only; cat /proc/sys/kernel/shm_rmid_forced",
			"1\n1\n", 0},
		{"open files", "ulimit -Hn", "512\n", 1000},
		{"core files", "ulimit -Hc", "0\n", 1000},
		{"tmp", "stat -c '%a %U' /tmp; head -c 9000000 /dev/zero >/tmp/x 2>/dev/null; stat -c %s /tmp/x; rm /tmp/x",
			"1777 root\n4194304\n", 1000},
		{"home", "stat -c '%u %g' /home/user; head -c 9000000 /dev/zero >/home/user/x 2>/dev/null; stat -c %s " +
			"/home/user/x; rm /home/user/x",
			"1000 1000\n4194304\n", 1000},
		{"scratch", "stat -c '%u %g' /workspace; head -c 9000000 /dev/zero >/workspace/x 2>/dev/null; stat -c %s " +
			"/workspace/x; rm /workspace/x",
			"1000 1000\n4194304\n", 1000},
		{"run", "touch /run/x 2>&1", "touch: cannot touch '/run/x': Permission denied\n", 1000},
		{"masked", "cat /proc/kcore /proc/keys 2>/dev/null | wc -c; ls /sys/firmware | wc -l", "0\n0\n", 0},
		{"no block device", "mknod /tmp/d b 254 0 2>&1", "mknod: /tmp/d: Operation not permitted\n", 0},
		{"mounting", "mount -t tmpfs none /tmp 2>&1 | grep -c denied", "1\n", 0},
		{"a terminal", "ls /dev/ptmx /dev/pts/ptmx", "/dev/ptmx\n/dev/pts/ptmx\n", 1000},
		{"not all terminals", `python3 -c 'import os
n = 0
try:
    while n < 500:
        os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
        n += 1
except OSError as e:
    print(n, e.strerror)'`, "64 No space left on device\n", 1000},
		{"signals", "cat /proc/1/oom_score_adj", "500\n", 1000},
	} {
		if c.what == "root's flags" && crun() {
			continue // crun creates a new mount; "root" checks that the file system is read-only
		}
		if got := sh(t, s, c.uid, c.line); got.Output != c.want {
			t.Errorf("%s: output = %q (%s), want %q", c.what, got.Output, got.Error, c.want)
		}
	}
}

func TestLimitsOnTheHost(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	dirs, err := ocidriver.CgroupsOf(s.ID())
	if err != nil || len(dirs) == 0 {
		t.Fatalf("cgroups = %v, %v; want some and no error", dirs, err)
	}
	// Files of limits of cgroup v1 or v2, and their wanted content.
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
				t.Errorf("%s = %s, want %s", filepath.Join(dir, name), got, value)
			}
		}
	}
	if seen < 4 {
		t.Errorf("%d caps found in %v, want at least 4", seen, dirs)
	}
	if a := sh(t, s, 0, "ls /run/orchestrator/cgroup/*/cgroup.procs"); a.Error != "" {
		t.Errorf("list the cgroups inside: %+v, want no error", a)
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
		// These are allowed, and fail because pid 1 is not traced.
		{"ptrace options", []uint64{unix.SYS_PTRACE, unix.PTRACE_SETOPTIONS, 1, 0, unix.PTRACE_O_EXITKILL}, unix.ESRCH},
		{"trace exit", []uint64{unix.SYS_PTRACE, unix.PTRACE_SETOPTIONS, 1, 0,
			unix.PTRACE_O_EXITKILL | unix.PTRACE_O_TRACEEXIT}, unix.EPERM},
		{"trace exit the old way", []uint64{unix.SYS_PTRACE, 21, 1, 0, unix.PTRACE_O_TRACEEXIT}, unix.EPERM},
		{"seize", []uint64{unix.SYS_PTRACE, unix.PTRACE_SEIZE, 999999, 0, 0}, unix.ESRCH},
		{"seize with trace exit", []uint64{unix.SYS_PTRACE, unix.PTRACE_SEIZE, 999999, 0, unix.PTRACE_O_TRACEEXIT},
			unix.EPERM},
	} {
		call := slices.Concat(c.call, make([]uint64, 7-len(c.call)))
		got, err := ask(t, s, map[string]any{"call": call})
		if err != nil {
			t.Fatalf("ask for %s: %v", c.what, err)
		}
		if c.what == "an unknown call" && crun() && unix.Errno(got.Errno) == unix.EPERM {
			continue // only runc distinguishes unknown calls from refused ones
		}
		if unix.Errno(got.Errno) != c.want {
			t.Errorf("system call %s: %v, want %v", c.what, unix.Errno(got.Errno), c.want)
		}
	}
}

// The filter allows no system call of the other word size.
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
		t.Errorf("native binary: %+v, want the output %q", got, "hello from /workspace/native\n")
	}
	if got := sh(t, s, 1000, "/workspace/foreign"); got.Error == "" || strings.Contains(got.Output, "hello") {
		t.Errorf("foreign binary: %+v; want an error and no %q", got, "hello")
	}
	if err := s.Unbind(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWorkspaceComesAndGoes(t *testing.T) {
	b := newBench(t)
	s := b.make(t)
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(dir, 0o777),
		os.WriteFile(filepath.Join(dir, "file"), []byte("mine"), 0o644)); err != nil {
		t.Fatal(err)
	}
	for _, ro := range []bool{true, false} {
		if err := s.Bind(t.Context(), runtime.Binding{Source: dir, ReadOnly: ro}); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, s, 1000, "cat /workspace/file"); got.Output != "mine" {
			t.Errorf("read with read-only %v: %+v, want the output %q", ro, got, "mine")
		}
		if got := sh(t, s, 1000, "touch /workspace/new"); (got.Error != "") != ro {
			t.Errorf("write with read-only %v: %+v; want an error: %v", ro, got, ro)
		}
		if err := s.Unbind(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := sh(t, s, 1000, "ls /workspace"); got.Output != "" {
			t.Errorf("list after Unbind: %+v, want no output", got)
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
			t.Errorf("Bind of %s: %v, want NotFound if it is missing, else InvalidArgument", source, err)
		}
	}
}
