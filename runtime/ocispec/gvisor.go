package ocispec

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// What differs in class gvisor, whoever starts runsc:
//
//   - The wall is a kernel in user space, into which our seccomp filter is loaded as well. Masks, sysctls and the cgroup namespace
//     mean nothing to it.
//   - A mount that is made after the start does not appear inside, so /workspace is a tmpfs of limits.scratch and files are carried.
//   - Commands have no cgroups of their own. Their number is a limit that gVisor's kernel keeps for each user; what the host
//     counts is that kernel with its helpers, in the sandbox's cgroup, which [GVisorCaps] gives.
//   - The guest's streams come from gVisor's file server: a socket of the host can be dialled only with [GVisorFlags], and who
//     dialled is to be looked up by the cgroup of the peer, not by its pid.

const (
	// gvisorMemory and gvisorPerPid are what gVisor's kernel takes for itself, in bytes: on the host for each process of
	// the sandbox some threads, their stacks and page tables.
	gvisorMemory = 64 << 20
	gvisorPerPid = 1 << 20
	// gvisorThreads are those of gVisor's kernel and file server themselves.
	gvisorThreads = 128
	// gvisorPerTask: on the ptrace platform each process of a sandbox has a thread for each thread of gVisor's kernel that ever
	// ran it: 7 were seen with 90 processes. gVisor's kernel does not outlive a refused one, so this is generous.
	gvisorPerTask = 32
)

// GVisorCaps are the caps of the cgroup that runsc runs in with all it starts: what was asked for and what gVisor's kernel takes
// itself. Over the memory cap the host ends the sandbox as a whole. The number of processes that commands meet is a limit inside, for
// each of their users; the host's bounds what a flood costs it.
func GVisorCaps(l runtime.Limits) runtime.Limits {
	l.MemoryBytes += gvisorMemory + l.Pids*gvisorPerPid
	l.Pids = gvisorPerTask*l.Pids + gvisorThreads
	return l
}

// GVisorFlags are the flags of runsc that our sandboxes need, in the words of that version: text is what "runsc flags" prints.
// Missing names a flag that it lacks; then it cannot be used.
func GVisorFlags(text string) (flags []string, missing string) {
	have := func(name string) bool {
		return slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
			word, _, _ := strings.Cut(strings.TrimLeft(line, " -"), " ")
			return strings.HasPrefix(strings.TrimSpace(line), "-") && word == name
		})
	}
	if !have("network") {
		return nil, "network"
	}
	flags = []string{"--network=none"}
	switch {
	case have("host-uds"):
		flags = append(flags, "--host-uds=open")
	case have("fsgofer-host-uds"):
		flags = append(flags, "--fsgofer-host-uds")
	default:
		return nil, "host-uds"
	}
	// Our filter is loaded into gVisor's kernel.
	if !have("oci-seccomp") {
		return nil, "oci-seccomp"
	}
	flags = append(flags, "--oci-seccomp")
	// Newer versions keep writes to the root in memory or on disk; the root is read-only here.
	if have("overlay2") {
		flags = append(flags, "--overlay2=none")
	}
	return flags, ""
}

// GVisorPlatforms are the platforms that a version offers, the best first. Which of them work on a host only a try tells.
func GVisorPlatforms(text string) []string {
	_, text, _ = strings.Cut(text, "-platform string")
	text, _, _ = strings.Cut(strings.TrimLeft(text, "\n"), "\n")
	var offered []string
	for _, name := range []string{"systrap", "kvm", "ptrace"} {
		if strings.Contains(text, name) {
			offered = append(offered, name)
		}
	}
	return offered
}

// GVisorRlimits are the limits of every process, with the number of processes for each user, which gVisor's kernel keeps.
func GVisorRlimits(l runtime.Limits) []specs.POSIXRlimit {
	limit := uint64(max(1, l.Pids-runtime.GuestReservePids))
	return append(Rlimits(l), specs.POSIXRlimit{Type: "RLIMIT_NPROC", Hard: limit, Soft: limit})
}

// GVisorSeccompJSON is [SeccompJSON] for gVisor's kernel.
func GVisorSeccompJSON() ([]byte, error) {
	filter, err := Seccomp()
	if err != nil {
		return nil, err
	}
	filter.Syscalls = passThrough(filter.Syscalls)
	return seccompText(filter)
}

// forGVisor changes a configuration into one for runsc.
func forGVisor(config *specs.Spec, l runtime.Limits) {
	config.Process.Rlimits = GVisorRlimits(l)
	linux := config.Linux
	linux.Seccomp.Syscalls = passThrough(linux.Seccomp.Syscalls)
	linux.Sysctl, linux.MaskedPaths, linux.ReadonlyPaths = nil, nil, nil
	linux.Namespaces = slices.DeleteFunc(linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
	linux.Resources = Resources(GVisorCaps(l))
	scratch := Scratch(l)
	for i, m := range config.Mounts {
		if m.Destination == runtime.WorkspaceDir {
			config.Mounts[i] = specs.Mount{Destination: scratch.Path, Type: "tmpfs", Source: "tmpfs", Options: scratch.Options()}
		}
	}
}

// passThrough leaves calls to gVisor's kernel, which says ENOSYS to those it lacks. Its filters know one errno, and where that is EPERM the C library does
// not fall back to older calls: no thread could be started.
func passThrough(rules []specs.LinuxSyscall) []specs.LinuxSyscall {
	names := []string{"clone3", "fchmodat2"}
	// pselect6 by the name that gVisor of 2022 has for it, without which no select() works there; who does not know a name leaves it out.
	allowed := append(slices.Clone(names), "pselect")
	out := make([]specs.LinuxSyscall, 0, len(rules)+1)
	for _, r := range rules {
		r.Names = slices.DeleteFunc(slices.Clone(r.Names), func(n string) bool { return slices.Contains(names, n) })
		if len(r.Names) > 0 {
			out = append(out, r)
		}
	}
	return append(out, specs.LinuxSyscall{Names: allowed, Action: specs.ActAllow})
}

// Scratch is /workspace where none can be mounted from outside: a tmpfs that files are carried into.
func Scratch(l runtime.Limits) TmpfsMount {
	return TmpfsMount{Path: runtime.WorkspaceDir, Bytes: l.ScratchBytes, Mode: 0o755, UID: runtime.CommandUID, GID: runtime.CommandGID}
}
