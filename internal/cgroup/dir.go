package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// dir is one open cgroup directory. Everything below it is opened relative to its descriptor. Safe for concurrent use, Close included.
type dir struct {
	*os.Root
	name string // for messages only
}

func openDir(path string) (dir, error) {
	r, err := os.OpenRoot(path)
	if err != nil {
		return dir{}, err
	}
	return dir{Root: r, name: path}, nil
}

// open opens a child.
func (d dir) open(child string) (dir, error) {
	r, err := d.OpenRoot(child)
	if err != nil {
		return dir{}, fmt.Errorf("open cgroup %s: %w", d.name+"/"+child, bare(err))
	}
	return dir{Root: r, name: d.name + "/" + child}, nil
}

// readMax bounds what is read of one file: the longest is a cgroup.procs of some hundred thousand lines.
const readMax = 4 << 20

func (d dir) read(file string) (string, error) {
	f, err := d.Open(file)
	if err != nil {
		return "", fmt.Errorf("read %s/%s: %w", d.name, file, bare(err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, readMax))
	if err != nil {
		return "", fmt.Errorf("read %s/%s: %w", d.name, file, bare(err))
	}
	return string(b), nil
}

// write writes without creating: a missing file must stay "no such file", the sign of a kernel that lacks it.
func (d dir) write(file, value string) error {
	f, err := d.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write %s/%s: %w", d.name, file, bare(err))
	}
	_, err = f.WriteString(value)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %q to %s/%s: %w", value, d.name, file, bare(err))
	}
	return nil
}

func (d dir) has(file string) bool {
	_, err := d.Lstat(file)
	return err == nil
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
		err := d.Remove(child)
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
	f, err := d.Open(".")
	if err != nil {
		return nil, err
	}
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
