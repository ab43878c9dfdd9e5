package ocispec

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// Hostname is the same in every sandbox.
	Hostname = "sandbox"
	// OOMScoreAdj makes the kernel kill a sandbox before other processes of a host that is out of
	// memory.
	OOMScoreAdj = 500

	cpuPeriod = 100_000 // microseconds, the kernel's default

	runBytes = 4 << 20  // /run holds the guest's sockets
	shmBytes = 16 << 20 // /dev/shm, at most

	terminals = 64 // concurrent pseudo-terminals
)

// Args returns the command line of PID 1: the template's entrypoint, if any, and the guest.
func Args(spec runtime.Spec) []string {
	alone := spec.OrphanTimeout
	if alone == 0 {
		alone = runtime.DefaultOrphanTimeout
	}
	args := make([]string, 0, len(spec.Entrypoint)+4+2*len(spec.Ulimits)+2*len(spec.Tmpfs))
	args = append(args, spec.Entrypoint...)
	args = append(args, runtime.GuestPath, "init", "--alone", alone.String())
	for _, name := range slices.Sorted(maps.Keys(spec.Ulimits)) { // the guest sets them for commands and has none itself
		args = append(args, "--ulimit", name+"="+strconv.FormatInt(spec.Ulimits[name], 10))
	}
	for _, t := range TemplateTmpfs(spec) {
		args = append(args, "--shared", t.Path)
	}
	return args
}

// Env returns the whole environment of PID 1. It contains nothing of a caller, so /proc/1/environ
// reveals nothing; a caller's variables are set at the claim and reach commands only.
func Env() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
}

// Labels returns the labels by which the owner finds a container again.
func Labels(spec runtime.Spec) map[string]string {
	return map[string]string{
		LabelOwner: spec.Owner, LabelID: spec.ID, LabelTemplate: spec.Template, LabelBuild: spec.Build,
	}
}

// The names of the labels.
const (
	LabelOwner    = "orchestrator.owner"
	LabelID       = "orchestrator.id"
	LabelTemplate = "orchestrator.template"
	LabelBuild    = "orchestrator.build"
)

// Capabilities returns the guest's capabilities: to become the commands' user, and to signal its
// processes. Commands have none.
func Capabilities() []string { return []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID"} }

// Rlimits returns the limits of every process. The kernel counts some of them per user, and all
// commands have the same uid on the host. Such a limit is zero or generous, so that one sandbox
// cannot exhaust it for the others. The pids cgroup replaces RLIMIT_NPROC.
func Rlimits(l runtime.Limits) []specs.POSIXRlimit {
	both := func(name string, n uint64) specs.POSIXRlimit { return specs.POSIXRlimit{Type: name, Hard: n, Soft: n} }
	return []specs.POSIXRlimit{
		both("RLIMIT_CORE", 0),
		both("RLIMIT_MEMLOCK", 64<<10), // per process; also bounds what a key, a secret or a ring buffer can pin
		both("RLIMIT_MSGQUEUE", 0),     // per user: no POSIX message queues
		both("RLIMIT_NICE", 0),         // no priority above the host's normal one
		both("RLIMIT_NOFILE", uint64(max(0, l.OpenFiles))),
		both("RLIMIT_RTPRIO", 0), // no realtime scheduling
		// Per user. A queued signal counts toward the sandbox's memory. With a limit of the size of
		// the kernel's default, one sandbox alone does not exhaust the default of others.
		both("RLIMIT_SIGPENDING", 8192),
	}
}

// Sysctls returns the settings of the sandbox's IPC and network namespaces. Detached SysV shared
// memory is freed, since it would outlive the command that made it. TCP sockets start with small
// buffers, so that the first ones fit below the cap on socket memory.
func Sysctls() map[string]string {
	return map[string]string{
		"net.ipv4.tcp_rmem":      "4096 8192 1048576",
		"net.ipv4.tcp_wmem":      "4096 8192 1048576",
		"kernel.shm_rmid_forced": "1",
		"kernel.msgmni":          "32",
		"kernel.shmmni":          "256",
	}
}

// TmpfsMount is a file system in memory. What it holds counts toward the sandbox's memory.
type TmpfsMount struct {
	Path     string
	Bytes    int64
	Mode     uint32
	UID, GID int
	NoExec   bool
}

// Options returns the mount options, as in fstab; engines accept the same form.
func (t TmpfsMount) Options() []string {
	opts := []string{"nosuid", "nodev"}
	if t.NoExec {
		opts = append(opts, "noexec")
	} else {
		opts = append(opts, "exec")
	}
	return append(opts, "size="+strconv.FormatInt(t.Bytes, 10), fmt.Sprintf("mode=%04o", t.Mode),
		"uid="+strconv.Itoa(t.UID), "gid="+strconv.Itoa(t.GID))
}

// Tmpfs returns the writable mounts of every sandbox besides /workspace, in mount order.
func Tmpfs(l runtime.Limits) []TmpfsMount {
	return []TmpfsMount{
		{Path: "/dev/shm", Bytes: min(shmBytes, l.TmpBytes), Mode: 0o1777, NoExec: true},
		{Path: "/tmp", Bytes: l.TmpBytes, Mode: 0o1777},
		{Path: "/home/user", Bytes: l.TmpBytes, Mode: 0o755, UID: runtime.CommandUID, GID: runtime.CommandGID},
		{Path: "/run", Bytes: min(runBytes, l.TmpBytes), Mode: 0o755, NoExec: true},
	}
}

// TemplateTmpfs returns the mounts that the template adds, sorted by path. As in /tmp, every user
// may write and execute there.
func TemplateTmpfs(spec runtime.Spec) []TmpfsMount {
	out := make([]TmpfsMount, 0, len(spec.Tmpfs))
	for _, path := range slices.Sorted(maps.Keys(spec.Tmpfs)) {
		out = append(out, TmpfsMount{Path: path, Bytes: spec.Tmpfs[path], Mode: 0o1777})
	}
	return out
}

// MaskedPaths cannot be read inside: they reveal the host, or reach into its kernel.
func MaskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/kmsg", "/proc/key-users",
		"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel/security", "/sys/kernel/debug", "/sys/kernel/tracing",
	}
}

// ReadonlyPaths cannot be written inside, not even by the guest.
func ReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}
