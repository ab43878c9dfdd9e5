package hostfile

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/windows"
)

// Kinds of locks.
const (
	Exclusive = windows.LOCKFILE_EXCLUSIVE_LOCK
	Shared    = 0
)

// Directory is a flag for os.OpenFile without an effect.
const Directory = 0

const noFollow = 0

// TryLock locks an open file. how is Exclusive or Shared. It reports false if another open file has
// a lock that excludes it. The lock is released when the file is closed, also by the end of the
// process.
func TryLock(f *os.File, how int) (bool, error) {
	flags := uint32(how) | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, 1, 0, &windows.Overlapped{})
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, windows.ERROR_LOCK_VIOLATION):
		return false, nil
	}
	return false, fmt.Errorf("lock %s: %w", f.Name(), err)
}

// SyncDir does nothing: Windows cannot sync a directory.
func SyncDir(string) error { return nil }
