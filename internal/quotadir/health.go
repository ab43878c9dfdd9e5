package quotadir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// hasFailed reports whether the kernel stopped writing to the file system at mnt. That happens if
// the journal cannot be written, because the host's disk is full or broken.
func hasFailed(mnt string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(mnt, &st); err != nil || st.Flags&unix.ST_RDONLY != 0 {
		return true
	}
	// Only this service writes to the image's root. A quota or a full disk does not prevent a
	// change of its time.
	err := os.Chmod(mnt, 0o700)
	return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO)
}
