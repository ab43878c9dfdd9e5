package server

import (
	"slices"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// facts is what an ending is told from.
type facts struct {
	exit  *prefork.Exit  // nil: the leader was not seen to end
	cause runtime.Ending // ours, "" if it ended by itself
	used  cgroup.Usage   // of its group
	// before and after are of all commands together, where they tell more.
	before, after cgroup.Usage
	alone         bool // it ran alone all the time
	// full lists the places without room for files; wasFull are those before the
	// command. told: its output ended with the kernel's words for that.
	full    func() []string
	wasFull []string
	told    bool
}

// result is what is known of a command after its kill.
func (r *run) result(exit *prefork.Exit) runtime.Result {
	f := facts{exit: exit, before: r.before, full: r.s.diskFull, wasFull: r.wasFull}
	r.mu.Lock()
	f.cause = r.cause
	r.mu.Unlock()
	used, err := r.sp.group.Usage()
	if err != nil {
		r.s.Log.Warn("usage could not be read", "command", r.id, "error", err)
	}
	f.used = used
	if failed(exit) {
		f.told = r.told()
		f.after = r.s.yard.maker.counters()
		r.s.mu.Lock()
		f.alone = r.alone && r.s.starts == r.begun
		r.s.mu.Unlock()
	}
	return judge(f)
}

func failed(e *prefork.Exit) bool {
	return e == nil || !e.Status.Exited() || e.Status.ExitStatus() != 0
}

// judge names the ending. What we did comes first; then what the kernel did to
// a command that did not end well; then what the command did itself.
func judge(f facts) runtime.Result {
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
	case !failed(f.exit):
	case f.used.OOMKills > 0 || f.alone && f.after.OOMKills > f.before.OOMKills:
		res.Ending = runtime.OOM
		res.Detail = "the kernel killed processes of the command at the memory cap"
	case f.used.PidsDenied > 0 || f.metPidsCap():
		res.Ending = runtime.Pids
		res.Detail = "processes were refused to the command at the pids cap"
	default:
		f.judgeDisk(&res)
	}
	return res
}

// judgeDisk blames a full file system for the failure of a command that filled
// it, which only who ran alone is known to have done, or whose last words are
// that it is full. That there was no room before it, and is none now, is no more
// than a remark on a command that failed without a word about it.
func (f *facts) judgeDisk(res *runtime.Result) {
	full := f.full()
	if len(full) == 0 {
		return
	}
	filled := slices.DeleteFunc(slices.Clone(full), func(at string) bool { return slices.Contains(f.wasFull, at) })
	switch {
	case f.told:
		res.Ending = runtime.Disk
		res.Detail = "the command failed for want of room in " + strings.Join(full, ", ")
	case f.alone && len(filled) > 0:
		res.Ending = runtime.Disk
		res.Detail = "the command failed and left no room in " + strings.Join(filled, ", ")
	default:
		res.Detail = "there is no room in " + strings.Join(full, ", ")
	}
}

// metPidsCap blames a command for a cap that all commands have together if it
// was alone below it, or had most of the processes there ever were.
func (f *facts) metPidsCap() bool {
	if f.after.PidsDenied <= f.before.PidsDenied {
		return false
	}
	return f.alone || f.used.PidsPeak > 0 && 2*f.used.PidsPeak >= f.after.PidsPeak
}

// usageOf takes the group's figures, and the leader's own where none count.
func usageOf(f facts) runtime.Usage {
	u := runtime.Usage{CPUUser: f.used.CPUUser, CPUSystem: f.used.CPUSystem, MemoryBytes: f.used.MemoryPeak, Pids: f.used.PidsPeak}
	if u.CPUUser == 0 && u.CPUSystem == 0 && f.exit != nil {
		u.CPUUser = time.Duration(f.exit.Rusage.Utime.Nano())
		u.CPUSystem = time.Duration(f.exit.Rusage.Stime.Nano())
	}
	return u
}
