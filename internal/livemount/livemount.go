// Package livemount owns the mounts that reach into a running sandbox: a directory of the host that is a shared mount, given to
// the container as a slave, on which the host puts a directory later and takes it away again.
//
// Three rules, each learnt from a hole:
//   - Flags go on a detached private clone of the source first, and only then is it moved onto the target. A remount
//     afterwards does not reach the copies inside a container: a read-only workspace was writable.
//   - Taking away is a plain umount. The kernel refuses it while anything, in any container, still uses the
//     mount; a lazy one succeeds and the process inside goes on writing. Only [Sweep], for dead sandboxes, may be lazy.
//   - A source is opened once, without following a symbolic link at its end, and what was opened is what is mounted.
//
// Sources are cloned without the mounts below them: nothing that is bound here (a workspace, an overlay's root, a cgroup
// directory) needs them, and a mount somebody made inside a workspace would come with flags nobody chose.
//
// It needs CAP_SYS_ADMIN and Linux 5.12 (mount_setattr). It keeps no state, starts no goroutines, and never reads or
// writes a file below a mount. Calls on different targets may run at the same time; those on one target are the caller's
// to order.
//
// Errors: [ErrBusy], [ErrNotShared], [ErrKind], [ErrReadOnly], else what the kernel said, with the path.
package livemount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// The errors callers tell apart.
var (
	// ErrBusy: a process, here or in a container, still has a file or its working directory on the mount.
	ErrBusy = errors.New("mount is in use")
	// ErrNotShared: the target is not on a shared mount, so no container would see what is mounted there.
	ErrNotShared = errors.New("not a shared mount")
	// ErrKind: the source is a symbolic link, or not the kind of file that was asked for.
	ErrKind = errors.New("wrong kind of file")
	// ErrReadOnly: the source was to be writable and lies on a read-only mount.
	ErrReadOnly = errors.New("source is on a read-only mount")
)

// BusyWait is how long Unbind goes on while the mount is busy: processes that were just killed give up their files and
// directories a little after their death.
const BusyWait = 2 * time.Second

// Tmpfs says what to mount with MakeTmpfs. Always nosuid and nodev.
type Tmpfs struct {
	// Bytes is the most it can hold; it must be positive, for the kernel takes 0 as no bound.
	Bytes int64
	// Inodes is the most files it can have, 0 for one per 2 KiB and 1024 more. Empty files take kernel memory, not Bytes.
	Inodes   int64
	Mode     os.FileMode // permissions of its root
	UID, GID int
}

// MakeTmpfs mounts a fresh tmpfs at target, an existing directory, and makes it a shared mount of its own.
func MakeTmpfs(target string, t Tmpfs) error {
	if t.Bytes <= 0 {
		return fmt.Errorf("mount tmpfs at %s: size of %d octets, want a positive one", target, t.Bytes)
	}
	inodes := t.Inodes
	if inodes <= 0 {
		inodes = t.Bytes/2048 + 1024
	}
	opts := fmt.Sprintf("size=%d,nr_inodes=%d,mode=%04o,uid=%d,gid=%d", t.Bytes, inodes, t.Mode.Perm(), t.UID, t.GID)
	dir, err := open(target, unix.O_DIRECTORY)
	if err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	defer func() { _ = dir.Close() }()
	if err := unix.Mount("tmpfs", procPath(dir), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, opts); err != nil {
		return fmt.Errorf("mount tmpfs at %s: %w", target, err)
	}
	if err := makeShared(target); err != nil {
		return errors.Join(err, unix.Unmount(target, unix.UMOUNT_NOFOLLOW))
	}
	return nil
}

// makeShared gives the mount at target a peer group, which it keeps if it has one. Where the mount below is private that
// makes this one visible to containers and nothing else.
func makeShared(target string) error {
	if err := unix.Mount("", target, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mount at %s shared: %w", target, err)
	}
	return nil
}

// Bind mounts the directory source on the directory target, over whatever is there, nosuid and nodev always, and read-only
// if ro. Containers that have the target's mount as a slave see it when Bind returns. Target must lie on a
// shared mount. On error nothing is mounted.
func Bind(target, source string, ro bool) error {
	return bind(target, source, ro, unix.S_IFDIR)
}

// BindFile is Bind for a regular file on a regular file.
func BindFile(target, source string, ro bool) error {
	return bind(target, source, ro, unix.S_IFREG)
}

func bind(target, source string, ro bool, kind uint32) error {
	what := fmt.Sprintf("bind %s on %s", source, target)
	src, err := openKind(source, kind)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = src.Close() }()
	if !ro {
		var st unix.Statfs_t
		if err := unix.Fstatfs(int(src.Fd()), &st); err != nil {
			return fmt.Errorf("%s: look at source: %w", what, err)
		}
		if st.Flags&unix.ST_RDONLY != 0 {
			return fmt.Errorf("%s: %w", what, ErrReadOnly)
		}
	}
	dst, err := openKind(target, kind)
	if err != nil {
		return fmt.Errorf("%s: target: %w", what, err)
	}
	defer func() { _ = dst.Close() }()
	if err := checkShared(dst); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	clone, err := cloneDetached(src, ro)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = clone.Close() }() // a clone that was not moved goes with its descriptor
	err = unix.MoveMount(int(clone.Fd()), "", int(dst.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("%s: move mount: %w", what, err)
	}
	return nil
}

// cloneDetached clones the mount of src from src downwards, outside every namespace, with its flags set and without ties to
// where it came from.
func cloneDetached(src *os.File, ro bool) (*os.File, error) {
	fd, err := unix.OpenTree(int(src.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("clone mount: %w", err)
	}
	clone := os.NewFile(uintptr(fd), src.Name())
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if ro {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		err = fmt.Errorf("set flags on mount: %w", err)
		if errors.Is(err, unix.ENOSYS) {
			err = fmt.Errorf("%w (late binding needs Linux 5.12)", err)
		}
		return nil, errors.Join(err, clone.Close())
	}
	return clone, nil
}

// Unbind takes away the topmost mount at target, here and in every container. While the mount is in use it tries again
// for [BusyWait] or until ctx ends, whichever is first, and then fails with [ErrBusy]: the mount is still there, and only the end of
// whoever uses it helps. Unbind does not ask what the topmost mount is; see [Mounted].
func Unbind(ctx context.Context, target string) error {
	ctx, cancel := context.WithTimeout(ctx, BusyWait)
	defer cancel()
	wait := time.Millisecond
	for {
		err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case !errors.Is(err, unix.EBUSY):
			return fmt.Errorf("unmount %s: %w", target, err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("unmount %s: %w", target, ErrBusy)
		case <-time.After(wait):
		}
		wait = min(2*wait, 50*time.Millisecond)
	}
}

// openKind opens path as a handle, without following a symbolic link at its end.
func openKind(path string, kind uint32) (*os.File, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("path %q is not absolute", path)
	}
	f, err := open(path, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if st.Mode&unix.S_IFMT != kind {
		return nil, errors.Join(fmt.Errorf("%s: %w", path, ErrKind), f.Close())
	}
	return f, nil
}

func open(path string, flags int) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

func procPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }
