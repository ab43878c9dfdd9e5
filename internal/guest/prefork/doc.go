// Package prefork forks processes in advance and turns them into commands. It also has the reaper
// that PID 1 needs.
//
// A fork, a new cgroup and the move into it take milliseconds, mostly spent waiting for the kernel.
// Prefork does this work before a command arrives: a [Process] is a parked child of the guest that
// holds only one end of a socket pair and sleeps on it. To run a command, the parent sends argv,
// environment, identity and three descriptors. The child applies them and execs.
//
// Processes are not forked from the guest itself: each fork would write-protect the guest's pages,
// and each later write would copy one. Instead, the guest forks a zygote once at start. The zygote
// releases all memory except its stack and one buffer, and forks the parked processes on request,
// as children of the guest. Their memory therefore contains no caller's data.
//
// The zygote and the parked processes run the guest's own program after a plain fork. No Go code
// that needs the runtime may run there: they only make raw system calls on memory prepared before
// the fork.
//
// Goroutines: [Reaper.Run] needs one for the life of the process. Errors: a [StepError] reports the
// step that failed and its errno.
package prefork
