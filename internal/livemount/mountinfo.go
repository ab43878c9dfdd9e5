package livemount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Mounted counts the mounts stacked at target, 0 if there is none or no such path.
func Mounted(target string) (int, error) {
	path, err := realPath(target)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	stacked, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return m.Mountpoint != path, false })
	if err != nil {
		return 0, fmt.Errorf("list mounts: %w", err)
	}
	return len(stacked), nil
}

// IsMount reports whether something is mounted at target; false too where there is no such path. It asks the kernel about the one place, and where
// that is too old for it (before 5.8) reads the whole list.
func IsMount(target string) (bool, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, target, unix.AT_SYMLINK_NOFOLLOW|unix.AT_NO_AUTOMOUNT, 0, &st)
	switch {
	case errors.Is(err, unix.ENOENT):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look at %s: %w", target, err)
	case st.Attributes_mask&unix.STATX_ATTR_MOUNT_ROOT == 0:
		n, err := Mounted(target)
		return n > 0, err
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Shared reports whether target, a mount point or a place below one, lies on a shared mount, so that what is bound there
// reaches containers.
func Shared(target string) (bool, error) {
	f, err := open(target, 0)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	err = checkShared(f)
	if errors.Is(err, ErrNotShared) {
		return false, nil
	}
	return err == nil, err
}

// checkShared asks the kernel about the one mount, and where it is too old for that (before 6.8) reads the whole list, which
// takes milliseconds on a host with a thousand of them.
func checkShared(f *os.File) error {
	shared, err := statShared(f)
	if errors.Is(err, errors.ErrUnsupported) {
		shared, err = listShared(f)
	}
	switch {
	case err != nil:
		return fmt.Errorf("find mount of %s: %w", f.Name(), err)
	case !shared:
		return fmt.Errorf("%s: %w", f.Name(), ErrNotShared)
	}
	return nil
}

func listShared(f *os.File) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return false, err
	}
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return uint64(m.ID) != st.Mnt_id, false })
	if err != nil {
		return false, fmt.Errorf("list mounts: %w", err)
	}
	if len(found) == 0 {
		return false, errors.New("not in this mount namespace")
	}
	return isShared(found[0]), nil
}

// isShared reports whether a mount is in a peer group, by the optional fields of proc(5).
func isShared(m *mountinfo.Info) bool {
	return slices.ContainsFunc(strings.Fields(m.Optional), func(f string) bool { return strings.HasPrefix(f, "shared:") })
}

// Sweep takes away every mount at root and below it, for a sandbox that is dead. It unmounts plainly, again and again for
// grace or until ctx ends; what is busy then goes lazily, since nothing of the sandbox is left that could
// write, and a mount that stayed would keep the folder for ever. It is idempotent; root need not exist.
func Sweep(ctx context.Context, root string, grace time.Duration) error {
	path, err := realPath(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	plain, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	wait := time.Millisecond
	for {
		left, last := sweepOnce(path, 0)
		if left == 0 || !errors.Is(last, unix.EBUSY) {
			return last
		}
		select {
		case <-plain.Done():
			left, last = sweepOnce(path, unix.MNT_DETACH)
			if left > 0 || last != nil {
				return fmt.Errorf("unmount below %s: %d are left: %w", root, left, last)
			}
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// sweepOnce unmounts what it can, deepest first, until a pass over the list gets nowhere. Mounts can hide others (stacked, or
// below one that was covered later), so each pass looks afresh. It returns how many are left and why the last one is.
func sweepOnce(root string, flags int) (left int, last error) {
	for {
		mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(root))
		if err != nil {
			return 1, fmt.Errorf("list mounts: %w", err)
		}
		var points []string
		for _, m := range mounts {
			points = append(points, m.Mountpoint)
		}
		slices.SortFunc(points, func(a, b string) int { return len(b) - len(a) })
		done := 0
		last = nil
		for _, p := range points {
			switch err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW|flags); {
			case err == nil:
				done++
			case errors.Is(err, unix.EBUSY) || last == nil:
				last = fmt.Errorf("unmount %s: %w", p, err)
			}
		}
		if left = len(points) - done; left == 0 {
			return 0, nil
		}
		if done == 0 {
			return left, last
		}
	}
}

// realPath is path as mountinfo would show it: its parents without symbolic links, its end not followed.
func realPath(path string) (string, error) {
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("path %q is not absolute", path)
	}
	f, err := open(path, 0)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return os.Readlink(procPath(f))
}
