package ocidriver

import (
	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Share returns what commands may use: the sandbox's caps less the guest's reserve. The guest
// answers even when they use all of it.
func Share(l runtime.Limits) cgroup.Share {
	return cgroup.Share{
		MemoryBytes: l.MemoryBytes - runtime.GuestReserveBytes,
		Pids:        l.Pids - runtime.GuestReservePids,
		CPU:         0.95 * l.CPUs,
	}
}
