package quotadir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Space of a file system that images and their copies must leave free.
const (
	reserveBytes = 1 << 30
	reserveShare = 20 // or 1/reserveShare of the file system, if that is less
)

// Reserve returns how many bytes of a file system must stay free for Guard and for copies of
// images.
func Reserve(use Use) int64 { return min(reserveBytes, use.Bytes/reserveShare) }

// Guard keeps the host's disk from filling up under the images below base. Images are sparse. A
// command's writes first go to the page cache. If the host has no space when they are written back,
// they are lost without an error to the command, and the file system becomes read-only.
//
// So while the host has less than margin bytes free, Guard reserves all free blocks of mounted
// images. Writers get ENOSPC at once, and removed files free space on the host. Guard lifts the
// reservation when 1.25 times margin is free.
//
// Call it about once a second with a margin of what can be written in that time. tight reports
// whether images are reserved now. Calls are serialized, so that an older measurement cannot undo a
// newer one.
func Guard(ctx context.Context, base string, margin int64) (tight bool, err error) {
	unlock, err := lock(ctx, base)
	if err != nil {
		return false, err
	}
	defer unlock()
	use, err := Usage(base)
	if err != nil {
		return false, err
	}
	tight = use.Free < margin
	if !tight && use.Free < margin+margin/4 {
		return false, nil // Leave them as they are.
	}
	loops, err := attachedLoops()
	if err != nil {
		return tight, err
	}
	var errs []error
	for _, n := range loops {
		text, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", n))
		if err != nil || !strings.HasPrefix(string(text), filepath.Clean(base)+"/") {
			continue
		}
		// A missing file means that it is not an ext4, or not mounted any more.
		if err := setReserved(n, tight); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return tight, errors.Join(errs...)
}

// setReserved makes the ext4 on loop device n reserve all of its free blocks, or its normal number.
func setReserved(n int, tight bool) error {
	sectors, err := readNumber(fmt.Sprintf("/sys/block/loop%d/size", n))
	if err != nil {
		return err
	}
	blocks := sectors * 512 / blockSize
	want := reservedBlocks(blocks)
	if tight {
		want = blocks - 1
	}
	name := fmt.Sprintf("/sys/fs/ext4/loop%d/reserved_clusters", n)
	if have, err := readNumber(name); err != nil || have == want {
		return err
	}
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.FormatInt(want, 10))
	return errors.Join(err, f.Close())
}

func readNumber(name string) (int64, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
