package server

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// resources are the kernel's numbers of runtime.UlimitNames.
var resources = map[string]int{
	"as": unix.RLIMIT_AS, "cpu": unix.RLIMIT_CPU, "data": unix.RLIMIT_DATA, "fsize": unix.RLIMIT_FSIZE, "rss": unix.RLIMIT_RSS, "stack": unix.RLIMIT_STACK,
}

// checkUlimits refuses what no command could be bounded by.
func checkUlimits(limits map[string]int64) error {
	if err := runtime.ValidateUlimits(limits); err != nil {
		return fmt.Errorf("limits of commands: %w", err)
	}
	return nil
}

// bound sets the limits of a command's first process, and so of all that it
// starts, before it becomes the command. The guest has none of them: time and
// address space of a whole sandbox's life are not a command's.
func (s *Server) bound(pid int) *wire.Failure {
	for _, name := range slices.Sorted(maps.Keys(s.Ulimits)) {
		n := uint64(s.Ulimits[name])
		var have unix.Rlimit
		if err := unix.Prlimit(pid, resources[name], nil, &have); err == nil && have.Max < n {
			n = have.Max // nobody here may raise it
		}
		if err := unix.Prlimit(pid, resources[name], &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
			return wire.Failf(wire.FailedPrecondition, "", "limit %s of commands cannot be set: %v", name, err)
		}
	}
	return nil
}
