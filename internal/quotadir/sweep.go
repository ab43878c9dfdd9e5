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

// Sweep removes unused mounts and loop devices of the disks below base: mounts whose disk was
// removed, loop devices whose image was removed, and mounts for which used returns false. A nil
// used keeps all existing disks. Sweep calls used with the disk's directory locked. A later Mount
// waits for the lock; used must know about an earlier one. Busy mounts stay and are reported in the
// error.
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

// sweepMount unmounts one disk if it is unused or not a disk any more.
func sweepMount(ctx context.Context, dir string, used func(string) bool) error {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	switch _, err := readRecord(dir); {
	case errors.Is(err, os.ErrNotExist), err != nil: // It is not a disk any more.
		return livemount.Unbind(ctx, filepath.Join(dir, mountDir))
	case used == nil || used(dir):
		return nil
	}
	return unmountImage(ctx, dir)
}

// sweepLoops detaches devices whose image was removed. A mounted device is detached later, with its
// mount.
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
		below := strings.HasPrefix(name, filepath.Clean(base)+"/")
		if err != nil || !gone || !below || filepath.Base(name) != imageFile {
			continue
		}
		device, err := openLoop(n)
		if err != nil {
			continue // It was detached since.
		}
		if err := unix.IoctlSetInt(int(device.Fd()), unix.LOOP_CLR_FD, 0); err != nil && !errors.Is(err, unix.ENXIO) {
			errs = append(errs, fmt.Errorf("detach %s: %w", device.Name(), err))
		}
		_ = device.Close()
	}
	return errors.Join(errs...)
}
