package server

import (
	"slices"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// endingFacts is what the ending of a command is derived from.
type endingFacts struct {
	exit  *prefork.Exit  // nil: the end of the first process was not observed
	cause runtime.Ending // set if the guest ended the command
	used  cgroup.Usage   // usage of the command's group
	// before and after are counters of all commands together, where these show more than those of
	// the group.
	before, after cgroup.Usage
	alone         bool // no other command ran at any time
	// findFull lists the places without room for files, and fullBefore those before the command
	// started. saidDiskFull is set if the output ended with a message for a full disk.
	findFull     func() []string
	fullBefore   []string
	saidDiskFull bool
}

// result derives the result of a command after its processes were killed.
func (r *commandRun) result(exit *prefork.Exit) runtime.Result {
	f := endingFacts{exit: exit, before: r.before, findFull: r.s.fullPlaces, fullBefore: r.fullBefore}
	r.mu.Lock()
	f.cause = r.cause
	r.mu.Unlock()
	used, err := r.spare.group.Usage()
	if err != nil {
		r.s.Log.Warn("failed to read usage", "command", r.id, "error", err)
	}
	f.used = used
	if exitFailed(exit) {
		f.saidDiskFull = r.saidDiskFull()
		f.after = r.s.spares.maker.counters()
		r.s.mu.Lock()
		f.alone = r.alone && r.s.startCount == r.startSeq
		r.s.mu.Unlock()
	}
	return resolveResult(f)
}

func exitFailed(e *prefork.Exit) bool {
	return e == nil || !e.Status.Exited() || e.Status.ExitStatus() != 0
}

// resolveResult derives the ending. An action of the guest takes precedence, then what the kernel
// did to a command that failed, then the exit status.
func resolveResult(f endingFacts) runtime.Result {
	res := runtime.Result{ExitCode: -1, Ending: runtime.Exited, Usage: usageOf(f)}
	if e := f.exit; e != nil {
		switch {
		case e.Status.Exited():
			res.ExitCode = e.Status.ExitStatus()
		case e.Status.Signaled():
			res.Ending, res.Signal = runtime.Signalled, int(e.Status.Signal())
		}
	}
	switch {
	case f.cause != "":
		res.Ending = f.cause
	case f.exit == nil:
		res.Ending = runtime.SandboxLost
		res.Detail = "the end of the command was not seen"
	case !exitFailed(f.exit):
	case f.used.OOMKills > 0 || f.alone && f.after.OOMKills > f.before.OOMKills:
		res.Ending = runtime.OOM
		res.Detail = "the kernel killed processes of the command at the memory cap"
	case f.used.PidsDenied > 0 || f.hitPidsCap():
		res.Ending = runtime.Pids
		res.Detail = "processes were refused to the command at the pids cap"
	default:
		f.resolveDisk(&res)
	}
	return res
}

// resolveDisk reports Disk for a command that failed on a full file system: its output says so, or
// it ran alone and the file system filled up meanwhile. In other cases the full file system is only
// mentioned in Detail.
func (f *endingFacts) resolveDisk(res *runtime.Result) {
	full := f.findFull()
	if len(full) == 0 {
		return
	}
	filled := slices.DeleteFunc(slices.Clone(full), func(at string) bool { return slices.Contains(f.fullBefore, at) })
	switch {
	case f.saidDiskFull:
		res.Ending = runtime.Disk
		res.Detail = "the command failed for want of room in " + strings.Join(full, ", ")
	case f.alone && len(filled) > 0:
		res.Ending = runtime.Disk
		res.Detail = "the command failed and left no room in " + strings.Join(filled, ", ")
	default:
		res.Detail = "no space left in " + strings.Join(full, ", ")
	}
}

// hitPidsCap reports whether the command hit the process cap shared by all commands: it ran alone,
// or had at least half of the peak number of processes.
func (f *endingFacts) hitPidsCap() bool {
	if f.after.PidsDenied <= f.before.PidsDenied {
		return false
	}
	return f.alone || f.used.PidsPeak > 0 && 2*f.used.PidsPeak >= f.after.PidsPeak
}

// usageOf returns the usage of the group, or of the first process if the group has no counters.
func usageOf(f endingFacts) runtime.Usage {
	u := runtime.Usage{CPUUser: f.used.CPUUser, CPUSystem: f.used.CPUSystem, MemoryBytes: f.used.MemoryPeak,
		Pids: f.used.PidsPeak}
	if u.CPUUser == 0 && u.CPUSystem == 0 && f.exit != nil {
		u.CPUUser = time.Duration(f.exit.Rusage.Utime.Nano())
		u.CPUSystem = time.Duration(f.exit.Rusage.Stime.Nano())
	}
	return u
}
