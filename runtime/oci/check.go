package oci

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
)

// host names this driver in the shared checks.
const host = ocidriver.Driver("oci")

// probePrefix begins the names of directories that something is tried in.
const probePrefix = ".probe-"

// probeOverlay mounts an overlay of two read-only layers once.
func probeOverlay(dir, skeleton string) (err error) {
	probe, err := scratch.Make(dir, probePrefix)
	if err != nil {
		return fmt.Errorf("probe overlay: %w", err)
	}
	defer func() { err = errors.Join(err, probe.Remove()) }()
	at := filepath.Join(probe.Path, overlayName) // not the directory itself, whose lock is seen by its path
	if err := os.Mkdir(at, 0o700); err != nil {
		return fmt.Errorf("probe overlay: %w", err)
	}
	err = mountRoot(at, skeleton, filepath.Join(dir, "runc"), nil)
	switch {
	case errors.Is(err, unix.ENODEV):
		return host.Unfit("the kernel has no overlay file system", "modprobe overlay")
	case errors.Is(err, unix.EPERM):
		return host.Unfit("mounting is not permitted", "run with CAP_SYS_ADMIN on the host, not in a container")
	case err != nil:
		return fmt.Errorf("probe overlay: %w", err)
	}
	failpoint.Hit("start.overlay.mounted")
	return unmountRoot(at)
}

// probeID names the sandbox that is tried in a directory.
func probeID(dir string) string {
	return "probe-" + strings.TrimPrefix(filepath.Base(dir), probePrefix)
}

// sweepProbes removes what tries have left whose process was killed: processes, cgroups, ids,
// mounts and directories.
func sweepProbes(ctx context.Context, dir string, ids userns.Ranges) error {
	return scratch.Sweep(dir, probePrefix, func(probe string) error {
		id := probeID(probe)
		return errors.Join(ocidriver.RemoveCgroups(ctx, id), ocidriver.ReturnIDs(ids, filepath.Join(probe, "oci", id), unmountRoot),
			livemount.Sweep(ctx, probe, time.Second))
	})
}
