package ocidriver

import (
	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Share is what the commands may use: the sandbox's caps less what the guest needs to answer when they have used up theirs.
func Share(l runtime.Limits) cgroup.Share {
	return cgroup.Share{
		MemoryBytes: l.MemoryBytes - runtime.GuestReserveBytes,
		Pids:        l.Pids - runtime.GuestReservePids,
		CPU:         0.95 * l.CPUs,
	}
}
