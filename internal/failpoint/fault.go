// Package failpoint holds the points at which a test build can be made to die: a
// call of Hit stands at each step whose interruption must leave nothing
// unaccounted for.
//
// In normal builds Hit is an empty function that the compiler removes. In
// builds with the tag "faults" it kills its own process with SIGKILL at the
// point that the environment names. It never does anything else, starts no
// goroutine and returns no error.
package failpoint

// Env names the point at which a build with the tag "faults" dies:
// "point", or "point:N" for the N-th time it is reached, from 1.
const Env = "ORCHESTRATOR_FAULT"
