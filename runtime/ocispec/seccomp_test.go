package ocispec

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// decide returns the kernel's action for a call: rules of one call are alternatives, and all
// conditions of a rule must hold.
func decide(t *testing.T, f *specs.LinuxSeccomp, name string, args ...uint64) specs.LinuxSeccompAction {
	t.Helper()
	for _, r := range f.Syscalls {
		if !slices.Contains(r.Names, name) {
			continue
		}
		all := true
		for _, a := range r.Args {
			var v uint64
			if int(a.Index) < len(args) {
				v = args[a.Index]
			}
			all = all && holds(t, a, v)
		}
		if all {
			return r.Action
		}
	}
	return f.DefaultAction
}

func holds(t *testing.T, a specs.LinuxSeccompArg, v uint64) bool {
	t.Helper()
	switch a.Op {
	case specs.OpEqualTo:
		return v == a.Value
	case specs.OpLessThan:
		return v < a.Value
	case specs.OpLessEqual:
		return v <= a.Value
	case specs.OpGreaterThan:
		return v > a.Value
	case specs.OpMaskedEqual:
		return v&a.Value == a.ValueTwo
	default:
	}
	t.Fatalf("operator %s of the filter is unknown to this test, want one of the cases above", a.Op)
	return false
}

func filter(t *testing.T) *specs.LinuxSeccomp {
	t.Helper()
	f, err := Seccomp()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestSeccompRefusesWhatIsNotNamed(t *testing.T) {
	f := filter(t)
	if f.DefaultAction != specs.ActErrno || f.DefaultErrnoRet == nil || *f.DefaultErrnoRet != uint(unix.EPERM) {
		t.Errorf("default is %s %v, want EPERM", f.DefaultAction, f.DefaultErrnoRet)
	}
	if len(f.Architectures) != 1 {
		t.Errorf("architectures %v, want the native one alone", f.Architectures)
	}
	for _, name := range append(deniedCalls(), "clone3", "no_such_call") {
		if got := decide(t, f, name); got == specs.ActAllow {
			t.Errorf("action for %s = %s, want another", name, got)
		}
	}
}

func TestSeccompClone3LooksAbsent(t *testing.T) {
	for _, r := range filter(t).Syscalls {
		if slices.Contains(r.Names, "clone3") {
			if r.Action != specs.ActErrno || r.ErrnoRet == nil || *r.ErrnoRet != uint(unix.ENOSYS) {
				t.Errorf("clone3 is %s %v, want ENOSYS so that libraries use clone", r.Action, r.ErrnoRet)
			}
			return
		}
	}
	t.Error("the filter has no rule for clone3, want one")
}

func TestSeccompAllowsWhatTheGuestNeeds(t *testing.T) {
	f := filter(t)
	for _, name := range []string{
		"setuid", "setgid", "setgroups", "setresuid", "setresgid", "setfsuid", "setfsgid", "clone", "execve", "execveat",
		"wait4", "waitid",
		"pidfd_open", "pidfd_send_signal", "close_range", "kill", "tgkill", "prctl", "prlimit64", "openat", "openat2",
		"renameat2", "mkdirat",
		"unlinkat", "fchownat", "fchmodat", "memfd_create", "epoll_pwait", "accept4", "bind", "listen", "connect", "sendmsg",
		"recvmsg",
		"setsid", "setpgid", "ioctl", "futex", "rt_sigaction", "mmap", "name_to_handle_at", "vmsplice", "shmget", "mlock",
		"setpriority",
		"process_vm_readv", "seccomp", "copy_file_range", "fallocate", "statx", "getdents64",
	} {
		if got := decide(t, f, name); got != specs.ActAllow {
			t.Errorf("action for %s = %s, want %s", name, got, specs.ActAllow)
		}
	}
}

func TestSeccompArguments(t *testing.T) {
	f := filter(t)
	const traceExit, exitKill = unix.PTRACE_O_TRACEEXIT, unix.PTRACE_O_EXITKILL
	for _, c := range []struct {
		what string
		name string
		args []uint64
		want bool
	}{
		{"unix", "socket", []uint64{unix.AF_UNIX, unix.SOCK_STREAM}, true},
		{"tcp", "socket", []uint64{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC, 0}, true},
		{"tcp by name", "socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, true},
		{"udp 6", "socket", []uint64{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, true},
		{"sctp", "socket", []uint64{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, false},
		{"mptcp", "socket", []uint64{unix.AF_INET6, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, false},
		{"route", "socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, true},
		{"netfilter", "socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, false},
		{"audit", "socket", []uint64{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT}, false},
		{"vsock", "socket", []uint64{unix.AF_VSOCK, unix.SOCK_STREAM}, false},
		{"packet", "socket", []uint64{unix.AF_PACKET, unix.SOCK_RAW}, false},
		{"alg", "socket", []uint64{unix.AF_ALG, unix.SOCK_SEQPACKET}, false},
		{"bluetooth", "socket", []uint64{unix.AF_BLUETOOTH, unix.SOCK_RAW}, false},
		{"xdp", "socket", []uint64{unix.AF_XDP, unix.SOCK_RAW}, false},
		{"kcm", "socket", []uint64{unix.AF_KCM, unix.SOCK_DGRAM}, false},
		{"tipc", "socket", []uint64{unix.AF_TIPC, unix.SOCK_RDM}, false},
		{"rds", "socket", []uint64{unix.AF_RDS, unix.SOCK_SEQPACKET}, false},
		{"can", "socket", []uint64{unix.AF_CAN, unix.SOCK_RAW}, false},
		{"key", "socket", []uint64{unix.AF_KEY, unix.SOCK_RAW}, false},
		{"smc", "socket", []uint64{unix.AF_SMC, unix.SOCK_STREAM}, false},
		{"unix with bits above", "socket", []uint64{1<<32 | unix.AF_VSOCK}, false},
		{"unix pair", "socketpair", []uint64{unix.AF_UNIX}, true},
		{"tipc pair", "socketpair", []uint64{unix.AF_TIPC}, false},

		{"thread", "clone", []uint64{unix.CLONE_VM | unix.CLONE_THREAD}, true},
		{"user namespace", "clone", []uint64{unix.CLONE_NEWUSER}, false},
		{"net namespace", "clone", []uint64{unix.CLONE_NEWNET | unix.CLONE_VFORK}, false},
		{"no randomisation", "personality", []uint64{0x0040000}, false},
		{"query", "personality", []uint64{0xffffffff}, true},

		{"trace me", "ptrace", []uint64{unix.PTRACE_TRACEME}, true},
		{"attach", "ptrace", []uint64{unix.PTRACE_ATTACH}, true},
		{"poke with any data", "ptrace", []uint64{unix.PTRACE_POKEDATA, 1, 0, traceExit}, true},
		{"registers", "ptrace", []uint64{unix.PTRACE_GETREGSET, 1, 1, traceExit}, true},
		{"interrupt", "ptrace", []uint64{unix.PTRACE_INTERRUPT}, true},
		{"system calls", "ptrace", []uint64{unix.PTRACE_SYSCALL}, true},
		{"options", "ptrace", []uint64{unix.PTRACE_SETOPTIONS, 1, 0, exitKill | unix.PTRACE_O_TRACEEXEC}, true},
		{"trace exit", "ptrace", []uint64{unix.PTRACE_SETOPTIONS, 1, 0, traceExit}, false},
		{"trace exit among others", "ptrace", []uint64{unix.PTRACE_SETOPTIONS, 1, 0, exitKill | traceExit}, false},
		{"trace exit the old way", "ptrace", []uint64{21, 1, 0, traceExit}, false},
		{"seize", "ptrace", []uint64{unix.PTRACE_SEIZE, 1, 0, exitKill}, true},
		{"seize with trace exit", "ptrace", []uint64{unix.PTRACE_SEIZE, 1, 0, traceExit}, false},
	} {
		got := decide(t, f, c.name, c.args...) == specs.ActAllow
		if got != c.want {
			t.Errorf("%s(%s): allowed %v, want %v", c.name, c.what, got, c.want)
		}
	}
}

// Runtimes treat two conditions on one argument as alternatives, which would widen a rule that
// means both.
func TestSeccompNoArgumentTwice(t *testing.T) {
	for _, r := range filter(t).Syscalls {
		seen := map[uint]bool{}
		for _, a := range r.Args {
			if seen[a.Index] {
				t.Errorf("rule for %v has argument %d twice, want it once", r.Names, a.Index)
			}
			seen[a.Index] = true
		}
	}
}

// Docker reads the text with its own type and the same rules come out.
func TestSeccompJSONIsWhatDockerReads(t *testing.T) {
	text, err := SeccompJSON()
	if err != nil {
		t.Fatal(err)
	}
	got, err := seccomp.LoadProfile(string(text),
		&specs.Spec{Process: &specs.Process{Capabilities: &specs.LinuxCapabilities{}}})
	if err != nil {
		t.Fatal(err)
	}
	a, _ := json.Marshal(got)
	b, _ := json.Marshal(filter(t))
	if string(a) != string(b) {
		t.Errorf("after Docker's reader the filter = %s, want %s", a, b)
	}
}
