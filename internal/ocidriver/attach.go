package ocidriver

import (
	"context"
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Attach lets the streams of a sandbox's guest in, and binds the commands' cgroups where the class has them.
func Attach(ctx context.Context, c *rundir.Dir, id string, class runtime.Class, pid int, l runtime.Limits) error {
	if class == runtime.ClassGVisor {
		return c.AttachAs(ctx, pid, peerInSandbox(id))
	}
	return c.Attach(ctx, pid, Share(l))
}

// peerInSandbox says whether a process of the host is of gVisor's for this sandbox: the stream to the guest is opened by its file server. Commands
// cannot reach the socket, whose folder is root's, and nothing but root's processes can on the host.
func peerInSandbox(id string) func(pid int) error {
	return func(pid int) error {
		if !InCgroup(pid, CgroupsPath(id)) {
			return fmt.Errorf("peer is process %d, which is not in the cgroup of the sandbox", pid)
		}
		return nil
	}
}
