package oci

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
)

// unfit returns an error that says what this host lacks and how to get it.
func unfit(lack, fix string) error { return host.Unfit(lack, fix) }

// host names this driver in the shared checks.
const host = ocidriver.Driver("oci")

func (o Options) validate() error {
	if !filepath.IsAbs(o.StateDir) {
		return fmt.Errorf("state dir %q is not absolute: %w", o.StateDir, errdefs.ErrInvalidArgument)
	}
	if os.Geteuid() != 0 {
		return unfit("it is not run as root", "run it as root, or use the docker driver")
	}
	if !filepath.IsAbs(o.GuestPath) {
		return fmt.Errorf("guest path %q is not absolute: %w", o.GuestPath, errdefs.ErrInvalidArgument)
	}
	info, err := os.Stat(o.GuestPath)
	if err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("guest %s is not an executable file: %w", o.GuestPath, errdefs.ErrInvalidArgument)
	}
	p, err := ocidriver.Open(os.Getpid())
	if err != nil {
		return unfit("pidfds cannot be used ("+err.Error()+")", "use Linux 5.10 or later")
	}
	p.Close()
	return nil
}

// probeOverlay mounts an overlay of two read-only layers once.
func probeOverlay(dir, skeleton string) error {
	at, err := os.MkdirTemp(dir, ".probe-")
	if err != nil {
		return fmt.Errorf("probe overlay: %w", err)
	}
	defer func() { _ = os.Remove(at) }()
	err = mountRoot(at, skeleton, filepath.Join(dir, "runc"))
	switch {
	case errors.Is(err, unix.ENODEV):
		return unfit("the kernel has no overlay file system", "modprobe overlay")
	case errors.Is(err, unix.EPERM):
		return unfit("mounting is not permitted", "run with CAP_SYS_ADMIN on the host, not in a container")
	case err != nil:
		return fmt.Errorf("probe overlay: %w", err)
	}
	return unmountRoot(at)
}
