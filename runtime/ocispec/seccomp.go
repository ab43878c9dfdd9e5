package ocispec

import (
	"encoding/json"
	"fmt"
	goruntime "runtime"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/moby/profiles/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Seccomp returns the filter of guest and commands: Docker's default for the guest's capabilities,
// tightened for code that nobody has reviewed.
//
//   - Only the native system call table: a 32-bit or x32 call kills the process.
//   - Only sockets that stay inside: unix, IPv4 and IPv6 with the common protocols, and the netlink
//     family that getifaddrs(3) needs.
//   - No PTRACE_O_TRACEEXIT: processes that trace each other with it stop while exiting, and
//     SIGKILL does not end them.
//   - None of deniedCalls.
//
// The filter depends only on the architecture and the kernel version; callers that create many
// containers keep the result.
func Seccomp() (*specs.LinuxSeccomp, error) {
	native, ok := native()
	if !ok {
		return nil, fmt.Errorf("seccomp filter for %s is not known: run on amd64 or arm64: %w", goruntime.GOARCH,
			errdefs.ErrFailedPrecondition)
	}
	base, err := seccomp.GetDefaultProfile(&specs.Spec{Process: &specs.Process{
		Capabilities: &specs.LinuxCapabilities{Bounding: Capabilities()},
	}})
	if err != nil {
		return nil, fmt.Errorf("seccomp filter: %w", err)
	}
	base.Architectures = []specs.Arch{native}
	base.Syscalls = harden(base.Syscalls)
	return base, nil
}

// SeccompJSON returns the same filter as text, as Docker's --security-opt seccomp= takes it.
func SeccompJSON() ([]byte, error) {
	filter, err := Seccomp()
	if err != nil {
		return nil, err
	}
	return seccompText(filter)
}

func seccompText(filter *specs.LinuxSeccomp) ([]byte, error) {
	text, err := json.Marshal(filter)
	if err != nil {
		return nil, fmt.Errorf("seccomp filter: %w", err)
	}
	return text, nil
}

func native() (specs.Arch, bool) {
	switch goruntime.GOARCH {
	case "amd64":
		return specs.ArchX86_64, true
	case "arm64":
		return specs.ArchAARCH64, true
	}
	return "", false
}

// deniedCalls are system calls that Docker's default allows, or may allow in another version, and
// that sandboxes must not use. Except for the first lines, the default denies them too, for lack of
// a capability; listing them keeps it so.
func deniedCalls() []string {
	return []string{
		"socketcall",    // every address family at once, past any rule about socket
		"modify_ldt",    // 16-bit code; a long history of kernel bugs
		"fanotify_mark", // useless without fanotify_init
		"uretprobe", "uprobe",

		"io_uring_setup", "io_uring_enter", "io_uring_register", "userfaultfd", "bpf", "perf_event_open",
		"add_key", "request_key", "keyctl", "kexec_load", "kexec_file_load", "open_by_handle_at", "fanotify_init",
		"mount", "umount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree",
		"open_tree_attr",
		"mount_setattr", "unshare", "setns", "chroot", "swapon", "swapoff", "reboot", "quotactl", "quotactl_fd", "acct",
		"nfsservctl",
		"init_module", "finit_module", "delete_module", "create_module", "iopl", "ioperm", "vhangup", "syslog",
		"lookup_dcookie",
		"settimeofday", "stime", "clock_settime", "clock_settime64", "sethostname", "setdomainname",
		"kcmp", "pidfd_getfd", "process_madvise", "migrate_pages", "move_pages", "mbind", "set_mempolicy",
		"set_mempolicy_home_node",
	}
}

// harden removes the denied calls and replaces the default's rules for sockets and ptrace.
func harden(rules []specs.LinuxSyscall) []specs.LinuxSyscall {
	out := make([]specs.LinuxSyscall, 0, len(rules)+16)
	drop := append(deniedCalls(), "socket", "socketpair", "ptrace")
	for _, r := range rules {
		if r.Action == specs.ActAllow {
			r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return slices.Contains(drop, n) })
		}
		if len(r.Names) > 0 {
			out = append(out, r)
		}
	}
	return slices.Concat(out, sockets(), ptrace())
}

// allow returns a rule for one call; all conditions must hold. No argument may occur in two of
// them: runtimes read that as "or".
func allow(name string, when ...specs.LinuxSeccompArg) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: specs.ActAllow, Args: when}
}

func arg(index uint, op specs.LinuxSeccompOperator, value uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Op: op, Value: value}
}

// without returns a condition that holds if none of the bits is set.
func without(index uint, bits uint64) specs.LinuxSeccompArg {
	return specs.LinuxSeccompArg{Index: index, Op: specs.OpMaskedEqual, Value: bits, ValueTwo: 0}
}

// sockets allows the families that stay inside. Of the internet protocols it allows TCP and UDP:
// SCTP, DCCP, SMC, MPTCP, L2TP and others load kernel modules that no sandbox needs, and ICMP needs
// a network. Raw sockets need a capability that no process has.
func sockets() []specs.LinuxSyscall {
	const family, protocol = 0, 2
	internet := func(f, p uint64) specs.LinuxSyscall {
		return allow("socket", arg(family, specs.OpEqualTo, f), arg(protocol, specs.OpEqualTo, p))
	}
	return []specs.LinuxSyscall{
		allow("socket", arg(family, specs.OpEqualTo, unix.AF_UNIX)),
		allow("socket", arg(family, specs.OpEqualTo, unix.AF_NETLINK), arg(protocol, specs.OpEqualTo, unix.NETLINK_ROUTE)),
		allow("socketpair", arg(family, specs.OpEqualTo, unix.AF_UNIX)),
		internet(unix.AF_INET, 0), internet(unix.AF_INET, unix.IPPROTO_TCP), internet(unix.AF_INET, unix.IPPROTO_UDP),
		internet(unix.AF_INET6, 0), internet(unix.AF_INET6, unix.IPPROTO_TCP), internet(unix.AF_INET6, unix.IPPROTO_UDP),
	}
}

// ptraceOldSetOptions is PTRACE_OLDSETOPTIONS, the first number of PTRACE_SETOPTIONS, which x86
// kernels still accept.
const ptraceOldSetOptions = 21

// ptrace allows everything but the option that stops a dying process. Its rules list the requests
// around the three that take options.
func ptrace() []specs.LinuxSyscall {
	const request, data = 0, 3
	noTraceExit := without(data, unix.PTRACE_O_TRACEEXIT)
	// The requests in between, on either architecture: PTRACE_SYSCALL and the thread area (24, 25),
	// arch_prctl and system call emulation (30 to 34), events, signal information and register
	// sets.
	between := []uint64{
		24, 25, 30, 31, 32, 33, 34, unix.PTRACE_GETEVENTMSG, unix.PTRACE_GETSIGINFO, unix.PTRACE_SETSIGINFO,
		unix.PTRACE_GETREGSET, unix.PTRACE_SETREGSET,
	}
	rules := make([]specs.LinuxSyscall, 0, 5+len(between))
	rules = append(rules,
		allow("ptrace", arg(request, specs.OpLessThan, ptraceOldSetOptions)),
		allow("ptrace", arg(request, specs.OpEqualTo, ptraceOldSetOptions), noTraceExit),
		allow("ptrace", arg(request, specs.OpEqualTo, unix.PTRACE_SETOPTIONS), noTraceExit),
		allow("ptrace", arg(request, specs.OpEqualTo, unix.PTRACE_SEIZE), noTraceExit),
		allow("ptrace", arg(request, specs.OpGreaterThan, unix.PTRACE_SEIZE)),
	)
	for _, n := range between {
		rules = append(rules, allow("ptrace", arg(request, specs.OpEqualTo, n)))
	}
	return rules
}
