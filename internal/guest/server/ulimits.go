package server

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// resources maps runtime.UlimitNames to the kernel's numbers.
var resources = map[string]int{
	"as": unix.RLIMIT_AS, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE, "rss": unix.RLIMIT_RSS, "stack": unix.RLIMIT_STACK,
}

// checkUlimits rejects invalid limits.
func checkUlimits(limits map[string]int64) error {
	if err := runtime.ValidateUlimits(limits); err != nil {
		return fmt.Errorf("limits of commands: %w", err)
	}
	return nil
}

// applyUlimits sets the limits of a command's first process, which its children inherit, before it
// executes the command. The guest itself has none of them: CPU time and address space of the
// sandbox's whole life must not count against a command.
func (s *Server) applyUlimits(pid int) *wire.Failure {
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		n := uint64(s.Ulimits[name])
		var have unix.Rlimit
		if err := unix.Prlimit(pid, resources[name], nil, &have); err == nil && have.Max < n {
			n = have.Max // the guest may not raise it
		}
		if err := unix.Prlimit(pid, resources[name], &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
			return wire.Failf(wire.FailedPrecondition, "", "limit %s of commands cannot be set: %v", name, err)
		}
	}
	return nil
}
