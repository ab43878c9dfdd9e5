package docker

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
)

// openProcess returns a handle of pid if it is in the container's cgroup, whose path contains
// inside. NotFound: it is not, or no longer.
func openProcess(pid int, containerID, inside string) (*ocidriver.Process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("container %.12s has no process: %w", containerID, errdefs.ErrNotFound)
	}
	p, err := ocidriver.Open(pid)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("process %d of container %.12s has ended: %w", pid, containerID, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("container %.12s: %w", containerID, err)
	}
	in, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err == nil && !bytes.Contains(in, []byte(inside)) {
		p.Close()
		return nil, fmt.Errorf("process %d is not of container %.12s: %w", pid, containerID, errdefs.ErrNotFound)
	}
	if err != nil || p.Ended() {
		p.Close()
		return nil, fmt.Errorf("process %d of container %.12s has ended: %w", pid, containerID, errdefs.ErrNotFound)
	}
	return p, nil
}
