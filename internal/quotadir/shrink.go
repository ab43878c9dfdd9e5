package quotadir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

// shrinkImage makes a smaller copy of a detached image and replaces the image with it. An
// interrupted resize2fs would leave an unusable file system.
func shrinkImage(ctx context.Context, dir string, image *os.File, next *record) error {
	small := filepath.Join(dir, newImageFile)
	if err := writeShrunk(ctx, small, image, next); err != nil {
		return errors.Join(err, os.Remove(small))
	}
	if err := next.write(dir); err != nil {
		return err
	}
	return finishShrink(dir, next)
}

// writeShrunk writes a copy of the image with its next size.
func writeShrunk(ctx context.Context, small string, image *os.File, next *record) error {
	f, err := os.OpenFile(small, os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := copySparse(ctx, f, image, next.FromBytes); err != nil {
		return fmt.Errorf("copy the image: %w", err)
	}
	if err := repair(ctx, small); err != nil {
		return err
	}
	err = e2tool(ctx, "resize2fs", small, strconv.FormatInt(next.ImageBytes/blockSize, 10))
	if _, ok := errors.AsType[*exitError](err); ok {
		return fmt.Errorf("%w: %w", err, &NoRoomError{Bytes: next.Bytes, Used: next.Bytes})
	}
	if err != nil {
		return err
	}
	if err := f.Truncate(next.ImageBytes); err != nil {
		return err
	}
	s, err := readSuper(f)
	if err != nil {
		return err
	}
	return errors.Join(s.check(next), f.Sync())
}

// copySparse copies a file without its holes.
func copySparse(ctx context.Context, to, from *os.File, size int64) error {
	if err := to.Truncate(size); err != nil {
		return err
	}
	for at := int64(0); at < size; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		data, err := unix.Seek(int(from.Fd()), at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return nil
		}
		if err != nil {
			return err
		}
		hole, err := unix.Seek(int(from.Fd()), data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		const step = 4 << 20 // limits the time between checks of ctx and of the host's free space
		n := min(hole-data, step)
		if use, err := Usage(filepath.Dir(to.Name())); err == nil && use.Free < Reserve(use) {
			return fmt.Errorf("the host's disk is nearly full: %w", unix.ENOSPC)
		}
		if _, err := from.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := to.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(to, from, n); err != nil {
			return err
		}
		at = data + n
	}
	return nil
}

// finishShrink completes an interrupted shrink: once it is recorded, the smaller copy is complete.
// Otherwise it removes the copy. The next mount completes an interrupted growth.
func finishShrink(dir string, rec *record) error {
	small := filepath.Join(dir, newImageFile)
	switch {
	case rec.FromBytes == 0:
		if err := os.Remove(small); !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return nil
	case rec.FromBytes < rec.ImageBytes:
		return nil
	}
	if err := os.Rename(small, filepath.Join(dir, imageFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := hostfile.SyncDir(dir); err != nil {
		return err
	}
	rec.FromBytes = 0
	return rec.write(dir)
}
