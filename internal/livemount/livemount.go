// Package livemount mounts directories into a running sandbox: the container has a host directory
// as a slave of a shared mount, and the host mounts on it and unmounts later.
//
// Three rules, each from a past bug:
//   - Flags are set on a detached private clone of the source, which is then moved onto the target.
//     A later remount does not reach the copies inside a container: a read-only workspace was
//     writable.
//   - Unmounting is never lazy while a sandbox lives. The kernel refuses a plain umount while a
//     process in any container uses the mount; after a lazy one that process goes on writing. Only
//     [Sweep], for dead sandboxes, may unmount lazily.
//   - A source is opened once, without following a symbolic link at its end, and exactly what was
//     opened is mounted.
//
// Sources are cloned without the mounts below them. Nothing that is bound here (a workspace, the
// root of an overlay, a cgroup directory) needs those, and a mount inside a workspace would bring
// flags that nobody chose.
//
// It needs CAP_SYS_ADMIN and Linux 5.12 (mount_setattr). It keeps no state, starts no goroutines,
// and never reads or writes a file below a mount. Calls on different targets may run concurrently;
// the caller serialises calls on one target.
//
// Errors: [ErrBusy], [ErrNotShared], [ErrKind], [ErrReadOnly], [ErrNoIDMap], or what the kernel
// returned, with the path.
package livemount

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Errors that callers distinguish.
var (
	// ErrBusy: a process, on the host or in a container, has a file or its working directory on the
	// mount.
	ErrBusy = fmt.Errorf("mount is in use: %w", errdefs.ErrUnavailable)
	// ErrNotShared: the target is not on a shared mount, so no container would see the mount.
	ErrNotShared = errors.New("not a shared mount")
	// ErrKind: the source is a symbolic link, or another kind of file than requested.
	ErrKind = errors.New("wrong kind of file")
	// ErrReadOnly: the source should be writable but is on a read-only mount.
	ErrReadOnly = errors.New("source is on a read-only mount")
	// ErrNoIDMap: the source's file system cannot translate owners for a user namespace. Linux
	// can on ext4, xfs and btrfs, on tmpfs since 6.3, and never on an overlay.
	ErrNoIDMap = errors.New("the file system has no idmapped mounts")
)

// BusyWait is how long Unbind retries while the mount is busy: a killed process releases its files
// a little after its death.
const BusyWait = 2 * time.Second

// Tmpfs describes a mount for MakeTmpfs. It is always nosuid and nodev.
type Tmpfs struct {
	// Bytes is its size. It must be positive, since the kernel takes 0 as unlimited.
	Bytes int64
	// Inodes is the maximum number of files; 0 means one per 2 KiB plus 1024. Empty files use
	// kernel memory, not Bytes.
	Inodes   int64
	Mode     os.FileMode // permissions of its root
	UID, GID int
}

// MakeTmpfs mounts a new tmpfs at target, an existing directory, and makes it a shared mount.
func MakeTmpfs(target string, t Tmpfs) error {
	if t.Bytes <= 0 {
		return fmt.Errorf("mount tmpfs at %s: invalid size of %d bytes: must be positive", target, t.Bytes)
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

// makeShared gives the mount at target a peer group, unless it has one. If the parent mount is
// private, this makes only the new mount visible to containers.
func makeShared(target string) error {
	if err := unix.Mount("", target, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mount at %s shared: %w", target, err)
	}
	return nil
}

// Bind mounts the directory source on the directory target, on top of whatever is mounted there.
// The mount is nosuid and nodev, and read-only if ro. Containers that have the target's mount as a
// slave see it when Bind returns. Target must be on a shared mount. After an error nothing is
// mounted.
func Bind(target, source string, ro bool) error {
	return bind(target, source, Options{ReadOnly: ro}, unix.S_IFDIR)
}

// BindFile is Bind for a regular file on a regular file.
func BindFile(target, source string, ro bool) error {
	return bind(target, source, Options{ReadOnly: ro}, unix.S_IFREG)
}

// BindFor is Bind with more options.
func BindFor(target, source string, o Options) error { return bind(target, source, o, unix.S_IFDIR) }

// BindFileFor is BindFile with more options.
func BindFileFor(target, source string, o Options) error {
	return bind(target, source, o, unix.S_IFREG)
}

// Options of a mount.
type Options struct {
	ReadOnly bool
	// UserNS, if not nil, is a user namespace. Its processes see the owners that the files have
	// on disk, and what they make has their ids on disk. [ErrNoIDMap]: the source's file system
	// cannot.
	UserNS *os.File
}

// WithClones calls mount with clones of directories, without the mounts below them. It is for an
// overlay at target whose layers have other options than their mounts. Clones are nosuid and
// nodev and vanish when the overlay does. Before Linux 6.15 the layers of an overlay must be
// attached: they are then below the overlay at target, which has to be unmounted until nothing
// is left there.
func WithClones(target string, dirs []string, o Options, mount func(clones []*os.File) error) error {
	err := withClones(dirs, o, func(*os.File) error { return nil }, mount)
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	return withAttached(target, dirs, o, mount)
}

// withAttached is WithClones for older kernels.
func withAttached(target string, dirs []string, o Options, mount func(clones []*os.File) error) error {
	attached := 0
	err := withClones(dirs, o, func(clone *os.File) error {
		err := unix.MoveMount(int(clone.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH)
		if err != nil {
			return fmt.Errorf("attach clone of %s at %s: %w", clone.Name(), target, err)
		}
		attached++
		return nil
	}, mount)
	for ; err != nil && attached > 0; attached-- {
		err = errors.Join(err, unix.Unmount(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH))
	}
	return err
}

func withClones(dirs []string, o Options, made func(clone *os.File) error, mount func(clones []*os.File) error) error {
	clones := make([]*os.File, 0, len(dirs))
	defer func() {
		for _, c := range clones {
			_ = c.Close()
		}
	}()
	for _, dir := range dirs {
		src, err := openKind(dir, unix.S_IFDIR)
		if err != nil {
			return fmt.Errorf("clone %s: %w", dir, err)
		}
		clone, err := cloneDetached(src, o)
		_ = src.Close()
		if err != nil {
			return fmt.Errorf("clone %s: %w", dir, err)
		}
		clones = append(clones, clone)
		if err := made(clone); err != nil {
			return err
		}
	}
	return mount(clones)
}

func bind(target, source string, o Options, kind uint32) error {
	what := fmt.Sprintf("bind %s on %s", source, target)
	src, err := openKind(source, kind)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = src.Close() }()
	if !o.ReadOnly {
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
	clone, err := cloneDetached(src, o)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = clone.Close() }() // a clone that was not moved vanishes with its descriptor
	err = unix.MoveMount(int(clone.Fd()), "", int(dst.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("%s: move mount: %w", what, err)
	}
	return nil
}

// cloneDetached clones the mount of src, from src down, outside every namespace, with its flags set
// and without propagation.
func cloneDetached(src *os.File, o Options) (*os.File, error) {
	fd, err := unix.OpenTree(int(src.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("clone mount: %w", err)
	}
	clone := os.NewFile(uintptr(fd), src.Name())
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if o.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if o.UserNS != nil {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(o.UserNS.Fd())
	}
	if err := unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		if o.UserNS != nil && errors.Is(err, unix.EINVAL) {
			return nil, errors.Join(fmt.Errorf("%s: %w", src.Name(), ErrNoIDMap), clone.Close())
		}
		err = fmt.Errorf("set flags on mount: %w", err)
		if errors.Is(err, unix.ENOSYS) {
			err = fmt.Errorf("%w (late binding needs Linux 5.12)", err)
		}
		return nil, errors.Join(err, clone.Close())
	}
	return clone, nil
}

// Unbind unmounts the topmost mount at target, here and in every container. While the mount is in
// use it retries for [BusyWait] or until ctx ends, and then fails with [ErrBusy]: the mount is
// still there, and only the end of its users helps. Unbind does not check what the topmost mount
// is; see [Mounted].
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
