// Package policy decides what a command may do, on what the command is: a shell
// command line is parsed, and the programs that would run are judged, not its
// text. It is a seat belt for agents that mean well or were told a lie; the
// boundary is the container.
//
// A Policy is immutable and may be used by many goroutines at once. A decision
// does no I/O, runs nothing, starts no goroutine, and is bounded in time and
// memory whatever the command is.
package policy
