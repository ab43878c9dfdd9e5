package quotadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/livemount"
)

// Use is the usage of a file system, in bytes and in files.
type Use struct {
	Bytes, Used, Free int64
	Files, FilesFree  int64
}

// Usage returns the usage of the file system that contains root. For a project quota the kernel
// returns the limit and what is charged to it. For a directory without a limit it returns the usage
// of the host's file system.
func Usage(root string) (Use, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(root, &st)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return Use{}, fmt.Errorf("usage of %s: %w", root, err)
		}
	}
	size := st.Bsize
	return Use{
		Bytes: int64(st.Blocks) * size,
		Used:  int64(st.Blocks-st.Bfree) * size,
		Free:  int64(st.Bavail) * size,
		Files: int64(st.Files), FilesFree: int64(st.Ffree),
	}, nil
}

// UsageOf returns the usage of a disk. For an unmounted image it reads the superblock, which is
// exact after Unmount. It takes no lock.
func UsageOf(dir string) (Use, error) {
	rec, err := readRecord(dir)
	if err != nil {
		return Use{}, err
	}
	if rec.Mechanism == Loop {
		is, err := livemount.IsMount(filepath.Join(dir, mountDir))
		if err != nil {
			return Use{}, err
		}
		if !is {
			return usageAtRest(dir, &rec)
		}
	}
	return Usage(rec.root(dir))
}

// usageAtRest computes an unmounted image's usage from its superblock.
func usageAtRest(dir string, rec *record) (Use, error) {
	image, err := os.OpenFile(filepath.Join(dir, imageFile), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return Use{}, err
	}
	defer image.Close()
	s, err := readSuper(image)
	if err != nil {
		return Use{}, fmt.Errorf("%s: %w", image.Name(), err)
	}
	p := s.layout(rec)
	bytes := max(s.blocks-p.overhead(), 0) * blockSize
	return Use{
		Bytes: bytes,
		Used:  max(bytes-s.freeBlocks*blockSize, 0),
		Free:  max(s.freeBlocks-reservedBlocks(s.blocks), 0) * blockSize,
		Files: s.inodes, FilesFree: s.freeInodes,
	}, nil
}

// Bound returns the limit that was requested for a disk, in bytes, and its mechanism. 0 means no
// limit.
func Bound(dir string) (int64, Mechanism, error) {
	rec, err := readRecord(dir)
	if err != nil {
		return 0, "", err
	}
	if rec.Mechanism == None {
		return 0, None, nil
	}
	return rec.Bytes, rec.Mechanism, nil
}
