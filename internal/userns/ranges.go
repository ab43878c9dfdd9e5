package userns

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// FirstID and Count are the default of Ranges: the ids that systemd's table of ranges leaves
	// unused, above those of its containers and of /etc/subuid.
	FirstID = 0x7000_0000
	Count   = 4094

	// DefaultDir is the default of Ranges.Dir. It is gone after a boot, as the sandboxes are.
	DefaultDir = "/run/orchestrator-ids"

	rootSuffix = ".root"
)

// Ranges hands out ranges of Size ids. All orchestrators of a host share one directory, which says
// who has which range:
//
//	D/1879048192       symbolic link to the holder's directory
//	D/1879048192.root  empty directory; where the holder may mount its root file system
//
// A range whose holder does not exist is free, unless something is mounted at its root: the holder
// may be one that this mount namespace does not see. Users inside a range may enter D, and so the
// root file system, but not list it. The last one who returns a range removes D.
type Ranges struct {
	Dir string // absolute; made if missing
	// Limit is the number of ranges; 0 means Count.
	Limit uint32
}

// Claim gives a free range to holder, an absolute path of a directory that exists, and returns its
// first id. Before it does, it calls note, so that a holder can return a range that it got in its
// last moment. ResourceExhausted: every range is taken.
func (r Ranges) Claim(holder string, note func(first uint32) error) (uint32, error) {
	unlock, err := r.lock()
	if err != nil {
		return 0, fmt.Errorf("claim ids: %w", err)
	}
	defer unlock()
	limit := cmp.Or(r.Limit, Count)
	var unclear error
	start := rand.Uint32N(limit) //nolint:gosec // spreads the load; nothing depends on chance
	for i := range limit {
		first := FirstID + (start+i)%limit*Size
		free, err := r.isFree(first)
		if err != nil {
			unclear = err
			continue
		}
		if !free {
			continue
		}
		if err = note(first); err == nil {
			err = r.take(first, holder)
		}
		if err != nil {
			return 0, fmt.Errorf("claim ids: %w", err)
		}
		return first, nil
	}
	if unclear != nil {
		return 0, fmt.Errorf("claim ids: no range in %s is free, and some cannot be examined (%w): %w", r.Dir, unclear,
			errdefs.ErrResourceExhausted)
	}
	return 0, fmt.Errorf("claim ids: all %d ranges in %s are taken: %w", limit, r.Dir, errdefs.ErrResourceExhausted)
}

// isFree reports whether nobody has a range. The caller has the lock.
func (r Ranges) isFree(first uint32) (bool, error) {
	if _, err := os.Stat(r.link(first)); !errors.Is(err, fs.ErrNotExist) {
		return false, err // its holder exists, or may exist
	}
	if mounted, err := isMount(r.Root(first)); mounted || err != nil {
		return false, err // a sandbox may use it
	}
	err := os.Remove(r.link(first)) // somebody removed the holder by hand
	if errors.Is(err, fs.ErrNotExist) {
		err = nil // there was none
	}
	return err == nil, err
}

// isMount reports whether something is mounted at path. Kernels older than 5.8 do not say, but have
// no mounts for user namespaces either.
func isMount(path string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("look at %s: %w", path, err)
	}
	return err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// take claims a free range. The caller has the lock.
func (r Ranges) take(first uint32, holder string) error {
	if err := os.Symlink(holder, r.link(first)); err != nil {
		return err
	}
	if err := os.Mkdir(r.Root(first), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return errors.Join(err, os.Remove(r.link(first)))
	}
	return nil
}

// Holds reports whether holder has a range.
func (r Ranges) Holds(first uint32, holder string) bool {
	has, err := os.Readlink(r.link(first))
	return err == nil && has == holder
}

// Release returns a range that holder has. It does nothing if another one has it. Nothing may be
// mounted at Root.
func (r Ranges) Release(first uint32, holder string) error {
	switch has, err := os.Readlink(r.link(first)); {
	case errors.Is(err, fs.ErrNotExist), err == nil && has != holder:
		return nil
	case err != nil:
		return fmt.Errorf("release ids: %w", err)
	}
	if err := unix.Rmdir(r.Root(first)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release ids: remove %s: %w", r.Root(first), err)
	}
	if err := os.Remove(r.link(first)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("release ids: %w", err)
	}
	unlock, err := r.lock() // a claim may have found the directory, and nothing in it yet
	if err != nil {
		return fmt.Errorf("release ids: %w", err)
	}
	defer unlock()
	_ = unix.Rmdir(r.Dir) // fails if there are other ranges
	return nil
}

// Root returns the path at which the holder of a range may mount its root file system: the users
// of the range can reach it, whatever the modes of the state directory are.
func (r Ranges) Root(first uint32) string { return r.link(first) + rootSuffix }

func (r Ranges) link(first uint32) string {
	return filepath.Join(r.Dir, strconv.FormatUint(uint64(first), 10))
}

// lock makes the directory and locks it. It keeps two processes from taking the same range.
func (r Ranges) lock() (unlock func(), err error) {
	for {
		if err := os.MkdirAll(r.Dir, 0o711); errors.Is(err, fs.ErrExist) && !isOther(r.Dir) {
			continue // made by another process, and removed meanwhile
		} else if err != nil { // see Ranges for the mode
			return nil, err
		}
		f, err := os.Open(r.Dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if err := flock(f); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		mine, err1 := f.Stat()
		now, err2 := os.Stat(r.Dir)
		if err1 == nil && err2 == nil && os.SameFile(mine, now) {
			return func() { _ = f.Close() }, nil
		}
		_ = f.Close() // removed while we waited
	}
}

// isOther reports whether the path has something other than a directory.
func isOther(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && !info.IsDir()
}

func flock(f *os.File) error {
	for {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
