// Package prefork starts the commands of a sandbox: it owns the raw fork, the
// parked child that waits to become a command, and the reaper of PID 1.
//
// A fork, a new cgroup and the move into it take milliseconds, most of them
// waiting for the kernel. They are done in advance: a [Leader] is a child
// of the guest that holds nothing but its end of a socket pair and sleeps on
// it. To run a command the parent sends argv, environment, identity and the
// three descriptors; the child only has to take them on and exec.
//
// Leaders are not forked from the guest itself, whose pages each fork would
// have to protect and each write after it to copy. The guest forks once, at
// the start: that child, the nursery, gives back all memory but its stack and
// one buffer, and forks the leaders, as children of the guest, when
// told to. So nothing of a caller is in their memory either.
//
// Nursery and leaders are the guest's own program after a plain fork, in which
// no Go code may run that needs the runtime: they make raw system calls on
// memory that was prepared before. Nothing here knows cgroups, users or wire
// types.
//
// Goroutines: [Reaper.Run] is one for the life of the process. Errors: a
// [StepError] says at which step and why a command could not be executed.
package prefork
