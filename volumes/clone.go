package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// A clone of a tree has its own directories, but its files are hard links to the same inodes. So it
// needs no space for file content. It stays independent as long as files are replaced and not
// written in place; see generation.go.

// clone copies src into dst, an empty directory, without the paths that skip reports. put copies
// one file.
func clone(ctx context.Context, src, dst *tree, skip func(rel string) bool, put fileCopier) error {
	var dirs []string
	var to *os.File // the directory of dst that is being filled
	var filled string
	defer func() {
		if to != nil {
			to.Close()
		}
	}()
	err := src.walk(ctx, "", func(rel string, from *os.File, name string, st *unix.Stat_t) (bool, error) {
		if skip(rel) {
			return false, nil
		}
		if at := parentDir(rel); to == nil || at != filled {
			next, err := dst.openDir(at)
			if err != nil {
				return false, err
			}
			if to != nil {
				to.Close()
			}
			to, filled = next, at
		}
		if st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return false, put(from, to, name, st)
		}
		dirs = append(dirs, rel)
		return true, unix.Mkdirat(fdOf(to), name, 0o700)
	})
	if err != nil {
		return err
	}
	// Set times last and innermost first: creating an entry changes its directory's time.
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := withDirs(src, dst, dirs[i], copyMetadata); err != nil {
			return err
		}
	}
	return withDirs(src, dst, "", copyMetadata)
}

func parentDir(rel string) string {
	dir, _ := path.Split(rel)
	return strings.TrimSuffix(dir, "/")
}

// fileCopier copies a file that is not a directory from one directory into another.
type fileCopier func(from, to *os.File, name string, st *unix.Stat_t) error

// linkFile creates a hard link. If the inode has the maximum number of links, it copies the file
// instead.
func linkFile(from, to *os.File, name string, st *unix.Stat_t) error {
	err := unix.Linkat(fdOf(from), name, fdOf(to), name, 0)
	if err == unix.EMLINK {
		return copyFile(from, to, name, st, func() error { return nil })
	}
	if err != nil {
		return fmt.Errorf("link %q: %w", clip.Message(name), err)
	}
	return nil
}

// withDirs opens the directory rel in src and in dst, and calls give with both.
func withDirs(src, dst *tree, rel string, give func(from, to *os.File) error) error {
	from, err := src.openDir(rel)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := dst.openDir(rel)
	if err != nil {
		return err
	}
	defer to.Close()
	return give(from, to)
}

// copyMetadata copies owner, mode, preserved attributes and times.
func copyMetadata(from, to *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(fdOf(from), &st); err != nil {
		return err
	}
	if err := unix.Fchown(fdOf(to), int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := unix.Fchmod(fdOf(to), st.Mode&0o7777); err != nil {
		return err
	}
	if err := copyAttributes(from, to, isPreservedAttribute); err != nil {
		return err
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	return unix.UtimesNanoAt(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fdOf(to)), times, 0)
}

// maxAttributes is the kernel's limit for a file's list of attribute names, in bytes.
const maxAttributes = 64 << 10

// listAttributes returns the names of an open file's extended attributes.
func listAttributes(f *os.File) ([]string, error) {
	buf := make([]byte, maxAttributes)
	n, err := unix.Flistxattr(fdOf(f), buf)
	if err == unix.ENOTSUP {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []string
	for name := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if name != "" {
			out = append(out, name)
		}
	}
	return out, nil
}

// isUserAttribute reports whether a command may set the attribute in a workspace: it is in the user
// namespace and no file system interprets it.
func isUserAttribute(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

// isPreservedAttribute reports whether a copy keeps the attribute.
func isPreservedAttribute(name string) bool {
	return isUserAttribute(name) || strings.HasPrefix(name, "system.posix_acl_")
}

// copyAttributes copies the extended attributes that wanted reports.
func copyAttributes(from, to *os.File, wanted func(name string) bool) error {
	names, err := listAttributes(from)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !wanted(name) {
			continue
		}
		value := make([]byte, maxAttributes)
		n, err := unix.Fgetxattr(fdOf(from), name, value)
		if err == nil {
			err = unix.Fsetxattr(fdOf(to), name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("attribute %q: %w", clip.Message(name), err)
		}
	}
	return nil
}

// copyCheck is called before each chunk of a file is copied. An error ends the copy.
type copyCheck func() error

// checkCopy returns a check for copies that use space of the host: it fails when ctx ends or the
// host's reserve would be used.
func (m *Manager) checkCopy(ctx context.Context) copyCheck {
	return func() error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		use, err := quotadir.Usage(m.dir)
		if err == nil && use.Free < quotadir.Reserve(use) {
			err = fmt.Errorf("the host's disk is nearly full: %w", unix.ENOSPC)
		}
		return err
	}
}

// copyFile copies a file, symbolic link, FIFO or socket with its metadata. It skips devices.
func copyFile(from, to *os.File, name string, st *unix.Stat_t, next copyCheck) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return copyRegular(from, to, name, next)
	case unix.S_IFLNK:
		target, err := readLinkAt(fdOf(from), name)
		if err != nil {
			return err
		}
		if err := unix.Symlinkat(target, fdOf(to), name); err != nil {
			return err
		}
	case unix.S_IFIFO, unix.S_IFSOCK:
		if err := unix.Mknodat(fdOf(to), name, st.Mode, 0); err != nil {
			return err
		}
	default: // Devices never work in a workspace.
		return nil
	}
	if err := unix.Fchownat(fdOf(to), name, int(st.Uid), int(st.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	return unix.UtimesNanoAt(fdOf(to), name, []unix.Timespec{st.Atim, st.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// copyRegular copies a regular file with its metadata.
func copyRegular(from, to *os.File, name string, next copyCheck) (err error) {
	rd, err := unix.Openat(fdOf(from), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	in := os.NewFile(uintptr(rd), name)
	defer in.Close()
	wr, err := unix.Openat(fdOf(to), name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	out := os.NewFile(uintptr(wr), name)
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := copyData(in, out, next); err != nil {
		return fmt.Errorf("copy %q: %w", clip.Message(name), err)
	}
	return copyMetadata(in, out)
}

// copyData copies a file's content and keeps its holes. It shares the blocks if the file system
// can.
func copyData(in, out *os.File, next copyCheck) error {
	if unix.IoctlFileClone(fdOf(out), fdOf(in)) == nil {
		return nil
	}
	info, err := in.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	for at := int64(0); at < size; {
		from, err := unix.Seek(fdOf(in), at, unix.SEEK_DATA)
		if err == unix.ENXIO { // Only a hole follows.
			break
		}
		if err != nil {
			return err
		}
		to, err := unix.Seek(fdOf(in), from, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		if err := copyRange(in, out, from, to, next); err != nil {
			return err
		}
		at = to
	}
	return out.Truncate(size)
}

func copyRange(in, out *os.File, from, to int64, next copyCheck) error {
	buf := make([]byte, 1<<20)
	for from < to {
		if err := next(); err != nil {
			return err
		}
		n, err := in.ReadAt(buf[:min(int64(len(buf)), to-from)], from)
		if n > 0 {
			if _, err := out.WriteAt(buf[:n], from); err != nil {
				return err
			}
			from += int64(n)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}
