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

// Mounted returns the number of mounts stacked at target, 0 if the path does not exist.
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

// IsMount reports whether target is a mount point; false if the path does not exist. It asks the
// kernel about this one path, and reads the whole list only before Linux 5.8.
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

// Shared reports whether target, a mount point or a path below one, is on a shared mount, so that
// binds there reach containers.
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

// checkShared asks the kernel about this one mount. Before Linux 6.8 it reads the whole list, which
// takes milliseconds on a host with a thousand mounts.
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
	found, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		return uint64(m.ID) != st.Mnt_id,
			false
	})
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

// Sweep removes every mount at root and below it, for a dead sandbox. It retries plain unmounts for
// grace or until ctx ends. What is still busy then is unmounted lazily: nothing of the sandbox is
// left that could write, and a remaining mount would keep the directory forever. It is idempotent;
// root need not exist.
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

// sweepOnce unmounts what it can, deepest first, until a pass makes no progress. Mounts can hide
// others (stacked, or below one that was covered later), so each pass reads the list again. It
// returns the number left and the error of the last one.
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

// realPath returns path as mountinfo shows it: its parents without symbolic links, its last element
// not followed.
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
