package livemount

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// mount is one line of mountinfo: what this package needs of it.
type mount struct {
	id     uint64
	point  string
	shared bool
}

// Mounted counts the mounts stacked at target, 0 if there is none or no such path.
func Mounted(target string) (int, error) {
	path, err := realPath(target)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	mounts, err := readMounts()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, m := range mounts {
		if m.point == path {
			n++
		}
	}
	return n, nil
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
	mounts, err := readMounts()
	if err != nil {
		return false, err
	}
	for _, m := range mounts {
		if m.id == st.Mnt_id {
			return m.shared, nil
		}
	}
	return false, errors.New("not in this mount namespace")
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
		mounts, err := readMounts()
		if err != nil {
			return 1, err
		}
		var points []string
		for _, m := range mounts {
			if m.point == root || strings.HasPrefix(m.point, root+"/") {
				points = append(points, m.point)
			}
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

func readMounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("list mounts: %w", err)
	}
	defer func() { _ = f.Close() }()
	return parseMounts(f)
}

// parseMounts reads the format of proc(5): id, parent, device, root, mount point, options, optional fields up to a dash.
func parseMounts(r io.Reader) ([]mount, error) {
	var mounts []mount
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			m, bad := parseMount(strings.TrimSuffix(line, "\n"))
			if bad != nil {
				return nil, bad
			}
			mounts = append(mounts, m)
		}
		if errors.Is(err, io.EOF) {
			return mounts, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list mounts: %w", err)
		}
	}
}

func parseMount(line string) (mount, error) {
	fields := strings.Split(line, " ")
	if len(fields) < 7 {
		return mount{}, fmt.Errorf("list mounts: line %q has too few fields", line)
	}
	id, err := strconv.ParseUint(fields[0], 10, 64)
	if err != nil {
		return mount{}, fmt.Errorf("list mounts: line %q: %w", line, err)
	}
	m := mount{id: id, point: unescape(fields[4])}
	for _, f := range fields[6:] {
		if f == "-" {
			break
		}
		m.shared = m.shared || strings.HasPrefix(f, "shared:")
	}
	return m, nil
}

// unescape undoes the octal escapes (\040 and the like) that the kernel writes for blanks and backslashes in paths.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
