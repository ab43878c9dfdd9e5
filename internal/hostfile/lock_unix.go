//go:build unix

package hostfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Kinds of locks.
const (
	Exclusive = unix.LOCK_EX
	Shared    = unix.LOCK_SH
)

// Directory is a flag for os.OpenFile: the name must be a directory, and no link.
const Directory = unix.O_DIRECTORY | unix.O_NOFOLLOW

const noFollow = unix.O_NOFOLLOW

// TryLock locks an open file or directory. how is Exclusive or Shared. It reports false if
// another open file has a lock that excludes it. The lock is released when every copy of the
// descriptor is closed, also by the end of the process.
func TryLock(f *os.File, how int) (bool, error) {
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); {
		case err == nil:
			return true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return false, nil
		case !errors.Is(err, unix.EINTR):
			return false, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// SyncDir makes the names in a directory survive a power loss.
func SyncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
