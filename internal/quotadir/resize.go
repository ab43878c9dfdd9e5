package quotadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// layout returns the parts of newLayout's result that stay the same when the size changes.
func (s superblock) layout(rec *record) layout {
	groups := ceil(s.blocks, groupBlocks)
	descs := ceil(groups, descsPerBlock) + s.reserved
	return layout{blocks: s.blocks, journal: rec.Journal, perGroup: s.perGroup, descs: descs}
}

// resizeImage grows or shrinks the image. A growth is recorded before it begins, so that the next
// mount can complete it. A smaller image is complete before it is recorded.
func resizeImage(ctx context.Context, dir string, rec *record, bytes int64) error {
	image, err := openImage(dir, rec)
	if err != nil {
		return err
	}
	defer image.Close()
	s, err := readSuper(image)
	if err != nil {
		return err
	}
	if err := s.check(rec); err != nil {
		return err
	}
	// While this file is open and locked, nothing can attach it.
	free, err := lockImage(image)
	if err != nil {
		return err
	}
	if free && rec.FromBytes != 0 {
		if err := checkAndRepair(ctx, dir, image, rec); err != nil {
			return err
		}
	}
	p := s.layout(rec)
	next := *rec
	next.Bytes = bytes
	next.ImageBytes = p.fit(bytes/blockSize) * blockSize
	switch {
	case bytes < rec.Bytes && !free:
		return fmt.Errorf("disk is in use and can only shrink while unmounted: %w", ErrBusy)
	case bytes < rec.Bytes:
		if used := (s.blocks - s.freeBlocks - p.overhead()) * blockSize; used > bytes {
			return &NoRoomError{Bytes: bytes, Used: used}
		}
		next.ImageBytes = min(next.ImageBytes, rec.ImageBytes)
	default:
		next.ImageBytes = max(next.ImageBytes, rec.ImageBytes)
	}
	switch {
	case next.ImageBytes == rec.ImageBytes:
		return next.write(dir)
	case next.ImageBytes < rec.ImageBytes:
		next.FromBytes = rec.ImageBytes
		return shrinkImage(ctx, dir, image, &next)
	case free:
		next.FromBytes = rec.ImageBytes
		if err := errors.Join(next.write(dir), image.Truncate(next.ImageBytes)); err != nil {
			return err
		}
		return checkAndRepair(context.WithoutCancel(ctx), dir, image, &next)
	}
	next.FromBytes = rec.ImageBytes
	return growMountedImage(dir, image, s, &next)
}

// growAtRest grows a detached image's file system to the size of the image, and updates the record.
func growAtRest(ctx context.Context, dir string, image *os.File, rec *record) error {
	if err := e2tool(ctx, "resize2fs", image.Name(), strconv.FormatInt(rec.ImageBytes/blockSize, 10)); err != nil {
		return err
	}
	rec.FromBytes = 0
	return errors.Join(image.Sync(), rec.write(dir))
}

// growMountedImage grows a mounted image and its file system.
func growMountedImage(dir string, image *os.File, s superblock, next *record) error {
	mnt := filepath.Join(dir, mountDir)
	if is, err := livemount.IsMount(mnt); !is || err != nil {
		return errors.Join(err, fmt.Errorf("a clone of the mount is still in use: %w", ErrBusy))
	}
	// Resize it to its current size first, to check the permission.
	if err := growExt4(mnt, uint64(s.blocks)); err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("growing a mounted disk needs CAP_SYS_RESOURCE: retry when no sandbox uses it: %w",
				errdefs.ErrFailedPrecondition)
		}
		return err
	}
	device, err := findAttached(image)
	if err != nil {
		return err
	}
	if device == nil {
		return fmt.Errorf("loop device not found: %w", ErrBusy)
	}
	defer device.Close()
	if err := errors.Join(next.write(dir), image.Truncate(next.ImageBytes), setCapacity(device)); err != nil {
		return err
	}
	if err := growExt4(mnt, uint64(next.ImageBytes/blockSize)); err != nil {
		return err
	}
	next.FromBytes = 0
	return next.write(dir)
}
