// Package hostfile replaces and locks files in directories that only the orchestrator writes to.
// For directories that a sandbox can change, use package safefile.
//
// A replaced file has its old or its new content, whenever the process ends. One caller at a time
// may replace a file. The package starts no goroutine; errors are those of the operating system.
package hostfile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// newSuffix ends the name of a file that replaces another one. The next call overwrites what a
// killed process left.
const newSuffix = ".new"

// Replace replaces the content and the mode of the file at path, or creates it. After a power loss
// the file may be empty; see ReplaceSynced.
func Replace(path string, content []byte, mode fs.FileMode) error {
	return replace(path, content, mode, func(*os.File) error { return nil }, os.Rename)
}

// ReplaceSynced is Replace for a file that survives a power loss once the call has returned nil. It
// calls written, if not nil, before the new content takes the place of the old one.
func ReplaceSynced(path string, content []byte, mode fs.FileMode, written func()) error {
	return replace(path, content, mode, (*os.File).Sync, func(from, to string) error {
		if written != nil {
			written()
		}
		return RenameSynced(from, to)
	})
}

func replace(path string, content []byte, mode fs.FileMode, sync func(*os.File) error,
	rename func(from, to string) error) error {
	f, err := os.OpenFile(path+newSuffix, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|noFollow, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(mode), sync(f), f.Close())
	if err == nil {
		err = rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name()) // else the next call overwrites it
	}
	return err
}

// RenameSynced renames a file or directory, and returns when the new name survives a power loss.
func RenameSynced(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(to))
}

// Lock is TryLock for an exclusive lock that waits until ctx ends.
func Lock(ctx context.Context, f *os.File) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		if locked, err := TryLock(f, Exclusive); locked || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the lock of %s: %w", f.Name(), context.Cause(ctx))
		case <-time.After(wait):
		}
	}
}
