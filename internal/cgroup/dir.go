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

// dir is an open cgroup directory. Files and children are opened relative to its descriptor, with
// names chosen by this package, without following links. It is safe for concurrent use, including
// Close.
//
// It uses raw system calls. A command needs about thirty reads and writes of one-line files that
// never block, and package os would make six more system calls for each.
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

// open opens a child directory.
func (d dir) open(child string) (dir, error) {
	c := dir{name: d.name + "/" + child}
	err := d.withFD(func(fd int) error {
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

// Close closes the descriptor. It is idempotent.
func (d dir) Close() error {
	if err := d.file.Close(); !errors.Is(err, fs.ErrClosed) {
		return err
	}
	return nil
}

// withFD calls do with the directory's descriptor, which stays open during the call. It repeats the
// call after EINTR.
func (d dir) withFD(do func(fd int) error) error {
	conn, err := d.file.SyscallConn()
	if err != nil {
		return unwrapPath(err)
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

// retry repeats do after EINTR.
func retry(do func() (int, error)) (int, error) {
	for {
		n, err := do()
		if err != unix.EINTR {
			return n, err
		}
	}
}

// maxRead bounds what is read from one file. The longest is a cgroup.procs with some hundred
// thousand lines.
const maxRead = 4 << 20

// openFile opens a file of the cgroup. The caller closes it with unix.Close.
func (d dir) openFile(file string, flags int) (fd int, err error) {
	err = d.withFD(func(at int) (err error) {
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
	defer unix.Close(fd)
	var small [1024]byte
	text := small[:0]
	for len(text) < maxRead {
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

// write writes to an existing file. It does not create one: a missing file shows that the kernel
// does not support it.
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
	return d.withFD(func(fd int) error { return unix.Fstatat(fd, file, &st, unix.AT_SYMLINK_NOFOLLOW) }) == nil
}

// mkdir makes a child directory.
func (d dir) mkdir(child string) error {
	return d.withFD(func(fd int) error { return unix.Mkdirat(fd, child, 0o755) })
}

// readNumber reads a file with one number. It returns false if the file is missing or contains
// "max".
func (d dir) readNumber(file string) (int64, bool) {
	s, err := d.read(file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64)
	return n, err == nil
}

// readKeyed reads a flat keyed file. It returns nil if the file is missing.
func (d dir) readKeyed(file string) map[string]int64 {
	s, err := d.read(file)
	if err != nil {
		return nil
	}
	return parseKeyed(s)
}

// readProcs lists the processes directly in the cgroup. hidden counts those outside this pid
// namespace. A removed cgroup has no processes.
func (d dir) readProcs() (pids []int, hidden int, err error) {
	s, err := d.read("cgroup.procs")
	if isGone(err) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	pids, hidden = parsePids(s)
	return pids, hidden, nil
}

// remove removes an empty child cgroup. The kernel returns EBUSY for a moment after the last
// process died, and while a file of the cgroup is in use, so remove retries until patience is over.
// A missing child is a success.
func (d dir) remove(child string, patience time.Duration) error {
	end := time.Now().Add(patience)
	for pause := 100 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := d.withFD(func(fd int) error { return unix.Unlinkat(fd, child, unix.AT_REMOVEDIR) })
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return fmt.Errorf("remove cgroup %s/%s: %w", d.name, child, unwrapPath(err))
		}
		time.Sleep(pause)
	}
}

// children returns the names of the direct children.
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

// isGone reports whether err means that the cgroup was removed. Its files then return ENODEV, its
// directory ENOENT, and its descriptor is closed.
func isGone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrClosed)
}

// unwrapPath returns the cause of a *fs.PathError whose path the caller adds itself.
func unwrapPath(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
