package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dir is one open cgroup directory. Everything below it is opened relative to its descriptor, by names of this package's own, and no
// link is followed. Safe for concurrent use, Close included.
//
// The calls are the kernel's own: a command costs some thirty reads and writes of files that are a line long and never block, and
// package os makes six further system calls for each, so that they could.
type dir struct {
	file *os.File
	name string // for messages only
}

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

func openDir(path string) (dir, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, openDirFlags, 0) })
	if err != nil {
		return dir{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return dir{file: os.NewFile(uintptr(fd), path), name: path}, nil
}

// open opens a child.
func (d dir) open(child string) (dir, error) {
	c := dir{name: d.name + "/" + child}
	err := d.at(func(fd int) error {
		n, err := unix.Openat(fd, child, openDirFlags|unix.O_NOFOLLOW, 0)
		if err == nil {
			c.file = os.NewFile(uintptr(n), c.name)
		}
		return err
	})
	if err != nil {
		return dir{}, fmt.Errorf("open cgroup %s: %w", c.name, err)
	}
	return c, nil
}

// Close gives the descriptor back. Idempotent.
func (d dir) Close() error {
	if err := d.file.Close(); !errors.Is(err, fs.ErrClosed) {
		return err
	}
	return nil
}

// at calls do with the directory's descriptor, which stays open meanwhile, again if a signal came between.
func (d dir) at(do func(fd int) error) error {
	conn, err := d.file.SyscallConn()
	if err != nil {
		return bare(err)
	}
	var failed error
	err = conn.Control(func(fd uintptr) {
		for {
			if failed = do(int(fd)); failed != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return fs.ErrClosed
	}
	return failed
}

// retry does something again that a signal came between.
func retry(do func() (int, error)) (int, error) {
	for {
		n, err := do()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// readMax bounds what is read of one file: the longest is a cgroup.procs of some hundred thousand lines.
const readMax = 4 << 20

// openFile opens a file of the cgroup; it is closed with unix.Close.
func (d dir) openFile(file string, flags int) (fd int, err error) {
	err = d.at(func(at int) (err error) {
		fd, err = unix.Openat(at, file, flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	return fd, err
}

func (d dir) read(file string) (string, error) {
	fd, err := d.openFile(file, unix.O_RDONLY)
	if err != nil {
		return "", fmt.Errorf("read %s/%s: %w", d.name, file, err)
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	var small [1024]byte
	text := small[:0]
	for len(text) < readMax {
		if len(text) == cap(text) {
			text = slices.Grow(text, len(text))
		}
		n, err := retry(func() (int, error) { return unix.Read(fd, text[len(text):cap(text)]) })
		if err != nil {
			return "", fmt.Errorf("read %s/%s: %w", d.name, file, err)
		}
		if n == 0 {
			break
		}
		text = text[:len(text)+n]
	}
	return string(text), nil
}

// write writes without creating: a missing file must stay "no such file", the sign of a kernel that lacks it.
func (d dir) write(file, value string) error {
	fd, err := d.openFile(file, unix.O_WRONLY)
	if err != nil {
		return fmt.Errorf("write %s/%s: %w", d.name, file, err)
	}
	_, err = retry(func() (int, error) { return unix.Write(fd, []byte(value)) })
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		return fmt.Errorf("write %q to %s/%s: %w", value, d.name, file, err)
	}
	return nil
}

func (d dir) has(file string) bool {
	var st unix.Stat_t
	return d.at(func(fd int) error { return unix.Fstatat(fd, file, &st, unix.AT_SYMLINK_NOFOLLOW) }) == nil
}

// mkdir makes a child.
func (d dir) mkdir(child string) error {
	return d.at(func(fd int) error { return unix.Mkdirat(fd, child, 0o755) })
}

// number reads a file of one number; false where there is none or the file says "max".
func (d dir) number(file string) (int64, bool) {
	s, err := d.read(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return n, err == nil
}

// keyed reads a flat keyed file; empty where there is none.
func (d dir) keyed(file string) map[string]int64 {
	s, err := d.read(file)
	if err != nil {
		return nil
	}
	return parseKeyed(s)
}

// procs lists the processes directly in the cgroup; hidden ones are outside our pid namespace. A removed cgroup is empty.
func (d dir) procs() (pids []int, hidden int, err error) {
	s, err := d.read("cgroup.procs")
	if gone(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	pids, hidden = parsePids(s)
	return pids, hidden, nil
}

// remove removes an empty child cgroup. The kernel answers EBUSY for a moment after the last process died, and while anybody holds a
// file of it in use; so it is tried again for the given time. A child that is not there is a success.
func (d dir) remove(child string, patience time.Duration) error {
	end := time.Now().Add(patience)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := d.at(func(fd int) error { return unix.Unlinkat(fd, child, unix.AT_REMOVEDIR) })
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("remove cgroup %s/%s: %w", d.name, child, bare(err))
		}
		time.Sleep(pause)
	}
}

// children names the cgroups directly below.
func (d dir) children() ([]string, error) {
	here, err := d.open(".")
	if err != nil {
		return nil, err
	}
	f := here.file
	defer f.Close()
	entries, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// gone says whether err means that the cgroup was removed: its files answer ENODEV, its directory has none, and only its removal closes
// our descriptor of it.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrClosed)
}

// bare takes the path off an error that is wrapped with a better one.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
