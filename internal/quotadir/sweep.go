package quotadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// Sweep takes away what nobody uses any more of the disks in base, a folder whose folders may be disks: mounts whose disk is gone, loop
// devices whose image is gone, and mounts for which used, if it is not nil, says no. used gets the disk's folder and is asked while that is locked: a
// Mount that comes later waits, one that was before must be known to it by then. What is busy stays and is told as an error; the rest goes on.
func Sweep(ctx context.Context, base string, used func(dir string) bool) error {
	points, err := livemount.Below(base)
	if err != nil {
		return fmt.Errorf("sweep disks: %w", err)
	}
	var errs []error
	for _, mnt := range points {
		if filepath.Base(mnt) != mountDir {
			continue
		}
		if err := sweepMount(ctx, filepath.Dir(mnt), used); err != nil {
			errs = append(errs, fmt.Errorf("sweep disk %s: %w", filepath.Dir(mnt), err))
		}
	}
	return errors.Join(append(errs, sweepLoops(base))...)
}

func sweepMount(ctx context.Context, dir string, used func(string) bool) error {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	switch _, err := readRecord(dir); {
	case errors.Is(err, os.ErrNotExist), err != nil: // not a disk any more
		return livemount.Unbind(ctx, filepath.Join(dir, mountDir))
	case used == nil || used(dir):
		return nil
	}
	return unmountImage(ctx, dir)
}

// sweepLoops clears devices whose image was removed. Of one that is mounted somewhere nothing changes: it goes with the mount.
func sweepLoops(base string) error {
	loops, err := attachedLoops()
	if err != nil {
		return err
	}
	const removed = " (deleted)"
	var errs []error
	for _, n := range loops {
		text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", n))
		name, gone := strings.CutSuffix(strings.TrimSuffix(string(text), "\n"), removed)
		if err != nil || !gone || !strings.HasPrefix(name, filepath.Clean(base)+"/") || filepath.Base(name) != imageFile {
			continue
		}
		device, err := openLoop(n)
		if err != nil {
			continue // it went meanwhile
		}
		if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			errs = append(errs, fmt.Errorf("clear %s: %w", device.Name(), err))
		}
		_ = device.Close()
	}
	return errors.Join(errs...)
}
