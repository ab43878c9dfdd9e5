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

// layout reads the shape back that newPlan gave, as far as it stays when the size changes.
func (s superblock) layout(rec *record) layout {
	groups := ceil(s.blocks, groupBlocks)
	return layout{blocks: s.blocks, journal: rec.Journal, perGroup: s.perGroup, descs: ceil(groups, descsPerBlock) + s.reserved}
}

// resizeImage makes the image larger or smaller. A growth is in the record before it begins, so that the next mount ends it; a
// smaller image is there whole before it is in the record.
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
	// As long as it is open and ours nothing can attach it.
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
		return fmt.Errorf("it is used, and shrinks at rest only: %w", ErrBusy)
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

// growAtRest makes the file system of an image that nothing has as large as the image, and notes it.
func growAtRest(ctx context.Context, dir string, image *os.File, rec *record) error {
	if err := e2tool(ctx, "resize2fs", image.Name(), strconv.FormatInt(rec.ImageBytes/blockSize, 10)); err != nil {
		return err
	}
	rec.FromBytes = 0
	return errors.Join(image.Sync(), rec.write(dir))
}

// growMountedImage does the same while it is mounted.
func growMountedImage(dir string, image *os.File, s superblock, next *record) error {
	mnt := filepath.Join(dir, mountDir)
	if is, err := livemount.IsMount(mnt); !is || err != nil {
		return errors.Join(err, fmt.Errorf("a clone of its mount is still used: %w", ErrBusy))
	}
	if err := growExt4(mnt, uint64(s.blocks)); err != nil { // to what it is: may we?
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("growing it while it is used needs CAP_SYS_RESOURCE: do it when no sandbox has it: %w", errdefs.ErrFailedPrecondition)
		}
		return err
	}
	device, err := findAttached(image)
	if err != nil {
		return err
	}
	if device == nil {
		return fmt.Errorf("its loop device was not found: %w", ErrBusy)
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
