package quotadir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// hasFailed says whether the kernel stopped writing to the file system at mnt, as it does when the journal could not be written: the host's
// disk was full under the image, or broken.
func hasFailed(mnt string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(mnt, &st); err != nil || st.Flags&unix.ST_RDONLY != 0 {
		return true
	}
	// The root of the image is ours alone: no quota and no full disk refuses the change of a folder's time.
	err := os.Chmod(mnt, 0o700)
	return errors.Is(err, unix.EROFS) || errors.Is(err, unix.EIO)
}
