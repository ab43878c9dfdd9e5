package ocispec

import (
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Differences of class gvisor, for every driver that starts runsc:
//
//   - A user-space kernel isolates the sandbox, and our seccomp filter is loaded into it. Masked
//     paths, sysctls and the cgroup namespace have no effect.
//   - A mount made after the start does not appear inside. So /workspace is a tmpfs of
//     limits.scratch, and files are copied.
//   - Commands have no cgroups. gVisor's kernel limits their number per user. The host counts that
//     kernel with its helpers, in the sandbox's cgroup, with the caps of [GVisorCaps].
//   - The guest's streams come from gVisor's file server. It can dial a host socket only with
//     [GVisorFlags], and the peer is identified by its cgroup, not by its pid.

const (
	// gvisorMemory and gvisorPerPid are what gVisor's kernel itself uses, in bytes: on the host,
	// each process of the sandbox costs several threads, their stacks and page tables.
	gvisorMemory = 64 << 20
	gvisorPerPid = 1 << 20
	// gvisorThreads is the number of threads of gVisor's kernel and file server.
	gvisorThreads = 128
	// gvisorPerTask: on the ptrace platform each process of a sandbox has a thread for each thread
	// of gVisor's kernel that ever ran it; 7 were seen with 90 processes. gVisor's kernel does not
	// survive a refused thread, so this is generous.
	gvisorPerTask = 32
)

// GVisorCaps returns the caps of the cgroup of runsc and everything it starts: the requested caps
// plus what gVisor's kernel needs. Beyond the memory cap the host ends the whole sandbox. Commands
// meet a process limit inside, per user; the host's limit bounds what a flood costs the host.
func GVisorCaps(l runtime.Limits) runtime.Limits {
	l.MemoryBytes += gvisorMemory + l.Pids*gvisorPerPid
	l.Pids = gvisorPerTask*l.Pids + gvisorThreads
	return l
}

// GVisorFlags returns the runsc flags that our sandboxes need, as this version spells them. text is
// the output of "runsc flags". If missing is not empty, it names a flag that this version lacks,
// and it cannot be used.
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
	// Newer versions keep writes to the root in memory or on disk; here the root is read-only.
	if have("overlay2") {
		flags = append(flags, "--overlay2=none")
	}
	return flags, ""
}

// GVisorPlatforms returns the platforms that a version offers, the best first. Only a trial shows
// which of them work on a host.
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

// GVisorRlimits returns the limits of every process, including the number of processes per user,
// which gVisor's kernel enforces.
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

// GVisorProbe returns the configuration of a trial of runsc, which runs "guest version". The guest
// is the only file of the root. cgroupsPath may be empty.
func GVisorProbe(root, cgroupsPath string) *specs.Spec {
	return &specs.Spec{
		Version: version,
		Root:    &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{Args: []string{"/guest", "version"}, Env: Env(), Cwd: "/", NoNewPrivileges: true},
		Linux: &specs.Linux{CgroupsPath: cgroupsPath, Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
		}},
	}
}

// forGVisor turns a configuration into one for runsc.
func forGVisor(config *specs.Spec, l runtime.Limits) {
	config.Process.Rlimits = GVisorRlimits(l)
	linux := config.Linux
	linux.Seccomp.Syscalls = passThrough(linux.Seccomp.Syscalls)
	linux.Sysctl, linux.MaskedPaths, linux.ReadonlyPaths = nil, nil, nil
	linux.Namespaces = slices.DeleteFunc(linux.Namespaces,
		func(n specs.LinuxNamespace) bool { return n.Type == specs.CgroupNamespace })
	linux.Resources = Resources(GVisorCaps(l))
	scratch := Scratch(l)
	for i, m := range config.Mounts {
		if m.Destination == runtime.WorkspaceDir {
			config.Mounts[i] = specs.Mount{Destination: scratch.Path, Type: "tmpfs", Source: "tmpfs", Options: scratch.Options()}
		}
	}
}

// passThrough allows calls whose absence gVisor's kernel reports with ENOSYS. Its filters know a
// single errno, EPERM, after which the C library does not fall back to older calls: no thread could
// start.
func passThrough(rules []specs.LinuxSyscall) []specs.LinuxSyscall {
	names := []string{"clone3", "fchmodat2"}
	// The 2022 release of gVisor knows pselect6 under this name, and select needs it. A release
	// that does not know the name ignores it.
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

// Scratch is /workspace if none can be mounted from outside: a tmpfs that files are copied into.
func Scratch(l runtime.Limits) TmpfsMount {
	return TmpfsMount{Path: runtime.WorkspaceDir, Bytes: l.ScratchBytes, Mode: 0o755, UID: runtime.CommandUID,
		GID: runtime.CommandGID}
}
