package ocidriver

import (
	"context"
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Attach admits the streams of a sandbox's guest and, if the class has them, binds the cgroups of
// commands. pid is the sandbox's first process on the host.
func Attach(ctx context.Context, c *rundir.Dir, id string, class runtime.Class, pid int, l runtime.Limits) error {
	if class == runtime.ClassGVisor {
		return c.AttachAs(ctx, pid, peerInSandbox(id))
	}
	return c.Attach(ctx, pid, Share(l))
}

// peerInSandbox returns a check of a stream's peer: it must be a process of gVisor for this
// sandbox, since gVisor's file server opens the stream to the guest. Commands cannot reach the
// socket, because its directory belongs to root; on the host only root's processes can.
func peerInSandbox(id string) func(pid int) error {
	return func(pid int) error {
		if !InCgroup(pid, CgroupsPath(id)) {
			return fmt.Errorf("peer is process %d, which is not in the cgroup of the sandbox", pid)
		}
		return nil
	}
}
