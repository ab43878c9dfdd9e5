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
	lockName   = "lock"
)

// Ranges hands out ranges of Size ids. All orchestrators of a host share one directory, which
// says who has which range:
//
//	D/1879048192       symbolic link to the holder's directory
//	D/1879048192.root  empty directory; where the holder may mount its root file system
//
// A range whose holder does not exist is free. Users inside a range may enter D, and so the root
// file system, but not list it.
type Ranges struct {
	Dir string // absolute; made if missing
	// Limit is the number of ranges; 0 means Count.
	Limit uint32
}

// Claim gives a free range to holder, an absolute path of a directory that exists, and returns
// its first id. ResourceExhausted: every range is taken.
func (r Ranges) Claim(holder string) (first uint32, err error) {
	if err := os.MkdirAll(r.Dir, 0o711); err != nil { // see Ranges
		return 0, fmt.Errorf("claim ids: %w", err)
	}
	unlock, err := r.lock()
	if err != nil {
		return 0, fmt.Errorf("claim ids: %w", err)
	}
	defer unlock()
	limit := cmp.Or(r.Limit, Count)
	start := rand.Uint32N(limit) //nolint:gosec // spreads the load; nothing depends on chance
	for i := range limit {
		first = FirstID + (start+i)%limit*Size
		ok, err := r.take(first, holder)
		if err != nil {
			return 0, fmt.Errorf("claim ids: %w", err)
		}
		if ok {
			return first, nil
		}
	}
	return 0, fmt.Errorf("claim ids: all %d ranges in %s are taken: %w", limit, r.Dir, errdefs.ErrResourceExhausted)
}

// take claims a range if it is free. The caller has the lock.
func (r Ranges) take(first uint32, holder string) (bool, error) {
	err := os.Symlink(holder, r.link(first))
	if errors.Is(err, fs.ErrExist) {
		if _, err := os.Stat(r.link(first)); !errors.Is(err, fs.ErrNotExist) {
			return false, err // its holder exists, or may exist
		}
		// The holder was removed without the range, after a crash.
		if err := os.Remove(r.link(first)); err != nil {
			return false, err
		}
		err = os.Symlink(holder, r.link(first))
	}
	if err != nil {
		return false, err
	}
	if err := os.Mkdir(r.Root(first), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, errors.Join(err, os.Remove(r.link(first)))
	}
	return true, nil
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
	return nil
}

// Root returns the path at which the holder of a range may mount its root file system: the users
// of the range can reach it, whatever the modes of the state directory are.
func (r Ranges) Root(first uint32) string { return r.link(first) + rootSuffix }

func (r Ranges) link(first uint32) string {
	return filepath.Join(r.Dir, strconv.FormatUint(uint64(first), 10))
}

// lock keeps two processes from taking the same abandoned range.
func (r Ranges) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(r.Dir, lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
