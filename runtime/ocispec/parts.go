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
	// OOMScoreAdj makes a sandbox go before what else runs on a host that is out of memory.
	OOMScoreAdj = 500

	cpuPeriod = 100_000 // microseconds, the kernel's own default

	runBytes = 4 << 20  // /run holds the guest's sockets
	shmBytes = 16 << 20 // /dev/shm, at most

	terminals = 64 // pseudo terminals that can be open at a time
)

// Args is the command line of PID 1: the guest, behind the template's entrypoint if it has one.
func Args(spec runtime.Spec) []string {
	alone := spec.OrphanTimeout
	if alone == 0 {
		alone = runtime.DefaultOrphanTimeout
	}
	args := make([]string, 0, len(spec.Entrypoint)+4+2*len(spec.Ulimits)+2*len(spec.Tmpfs))
	args = append(args, spec.Entrypoint...)
	args = append(args, runtime.GuestPath, "init", "--alone", alone.String())
	for _, name := range slices.Sorted(maps.Keys(spec.Ulimits)) { // the guest gives them to commands, and has none itself
		args = append(args, "--ulimit", name+"="+strconv.FormatInt(spec.Ulimits[name], 10))
	}
	for _, t := range TemplateTmpfs(spec) {
		args = append(args, "--shared", t.Path)
	}
	return args
}

// Env is the whole environment of PID 1. Whoever can read /proc/1/environ learns nothing; what a caller brings is bound at claim
// and given to commands only.
func Env() []string {
	return []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
}

// Labels are what a container carries so that its owner finds it again.
func Labels(spec runtime.Spec) map[string]string {
	return map[string]string{
		"orchestrator.owner":    spec.Owner,
		"orchestrator.id":       spec.ID,
		"orchestrator.template": spec.Template,
		"orchestrator.build":    spec.Build,
	}
}

// Capabilities are the guest's: to become the commands' user, and to signal what runs as one. Commands have none.
func Capabilities() []string { return []string{"CAP_KILL", "CAP_SETGID", "CAP_SETUID"} }

// Rlimits are the limits of every process. Those that the kernel counts per user count over all sandboxes together, as all commands have
// the same uid on the host: such a one is nothing at all or generous, never a small number that one sandbox could use up for the others. So
// there is none on processes (RLIMIT_NPROC): the pids cgroup is that cap.
func Rlimits(l runtime.Limits) []specs.POSIXRlimit {
	both := func(name string, n uint64) specs.POSIXRlimit { return specs.POSIXRlimit{Type: name, Hard: n, Soft: n} }
	return []specs.POSIXRlimit{
		both("RLIMIT_CORE", 0),
		both("RLIMIT_MEMLOCK", 64<<10), // per process; also what a key, a secret or a ring buffer may pin
		both("RLIMIT_MSGQUEUE", 0),     // per user: no POSIX message queues
		both("RLIMIT_NICE", 0),         // no priority above the host's normal one
		both("RLIMIT_NOFILE", uint64(max(0, l.OpenFiles))),
		both("RLIMIT_RTPRIO", 0), // no realtime scheduling
		// Per user, but a queued signal is charged to the sandbox's memory, and with a limit of the size of the kernel's own default
		// nobody else's default is exceeded by one sandbox alone.
		both("RLIMIT_SIGPENDING", 8192),
	}
}

// Sysctls are those of the sandbox's own IPC and network namespaces. SysV shared memory that nobody is attached to goes away: it would outlive the
// command that made it. TCP sockets begin with small buffers: what is in the first ones is not refused at the cap on what sockets hold.
func Sysctls() map[string]string {
	return map[string]string{
		"net.ipv4.tcp_rmem":      "4096 8192 1048576",
		"net.ipv4.tcp_wmem":      "4096 8192 1048576",
		"kernel.shm_rmid_forced": "1",
		"kernel.msgmni":          "32",
		"kernel.shmmni":          "256",
	}
}

// TmpfsMount is one file system in memory. Its size is charged to the sandbox's memory as it fills.
type TmpfsMount struct {
	Path     string
	Bytes    int64
	Mode     uint32
	UID, GID int
	NoExec   bool
}

// Options are the mount options, in the form that tmpfs takes in fstab; engines take the same.
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

// Tmpfs lists what is writable in a sandbox besides /workspace, in the order of mounting.
func Tmpfs(l runtime.Limits) []TmpfsMount {
	return []TmpfsMount{
		{Path: "/dev/shm", Bytes: min(shmBytes, l.TmpBytes), Mode: 0o1777, NoExec: true},
		{Path: "/tmp", Bytes: l.TmpBytes, Mode: 0o1777},
		{Path: "/home/user", Bytes: l.TmpBytes, Mode: 0o755, UID: runtime.CommandUID, GID: runtime.CommandGID},
		{Path: "/run", Bytes: min(runBytes, l.TmpBytes), Mode: 0o755, NoExec: true},
	}
}

// TemplateTmpfs lists what the template adds to that, sorted by path. As in /tmp, every user may write there and run what is there.
func TemplateTmpfs(spec runtime.Spec) []TmpfsMount {
	var out []TmpfsMount
	for _, path := range slices.Sorted(maps.Keys(spec.Tmpfs)) {
		out = append(out, TmpfsMount{Path: path, Bytes: spec.Tmpfs[path], Mode: 0o1777})
	}
	return out
}

// MaskedPaths cannot be read inside: they tell about the host, or reach into its kernel.
func MaskedPaths() []string {
	return []string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/proc/kmsg", "/proc/key-users",
		"/sys/devices/virtual/powercap", "/sys/firmware", "/sys/kernel/security", "/sys/kernel/debug", "/sys/kernel/tracing",
	}
}

// ReadonlyPaths cannot be written inside, not by the guest either.
func ReadonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}
