// Package policy decides whether a command may run. It parses a shell command line and judges the
// programs that would run, not the text. It protects against mistakes and misled agents; the
// security boundary is the container.
//
// A Policy is immutable and safe for concurrent use. A decision does no I/O, runs no program and
// starts no goroutine. Its time and memory are bounded for every input.
package policy
