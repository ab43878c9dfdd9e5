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

// What of a file system is not for images and their copies.
const (
	reserveBytes = 1 << 30
	reserveShare = 20 // or one part in so many, if that is less
)

// Reserve is how much of a file system is to stay free, for Guard and for whoever copies images.
func Reserve(use Use) int64 { return min(reserveBytes, use.Bytes/reserveShare) }

// Guard keeps the host's disk from running full under the images of base, a folder that has their folders below it. An image is sparse:
// what a command writes to it is in the page cache first, and if the host has no room when it is to be kept it is lost, the command
// is told nothing, and the file system ends read-only. So while the host has less than margin octets free, mounted images
// have no free blocks: whoever writes gets ENOSPC at once, and what is removed gives the host room again. When a quarter more than
// margin is free they are as before.
//
// Call it every second or so with a margin of what can be written in that time. tight says whether images are held now.
// One call at a time looks and acts: an older look must not undo what a newer one did.
func Guard(base string, margin int64) (tight bool, err error) {
	unlock, err := lock(context.Background(), base) // nobody has it for long
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
		return false, nil // as they are
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
		if err := setReserved(n, tight); err != nil && !errors.Is(err, os.ErrNotExist) { // not an ext4, or gone
			errs = append(errs, err)
		}
	}
	return tight, errors.Join(errs...)
}

// setReserved makes the ext4 on loop device n keep all of its blocks for itself, or what it keeps otherwise.
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
