package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Tags are group ids that nothing else uses, high up among those that the user
// namespace maps.
const (
	firstTag = 0x7f00_0000
	manyTags = 0x0040_0000
)

// tagRange hands out tags. One that could not be killed clean is never used
// again.
type tagRange struct {
	mu          sync.Mutex
	first, size uint32
	next        uint32
	used        map[uint32]bool
}

func newTagRange() (*tagRange, error) {
	text, err := os.ReadFile("/proc/self/gid_map")
	if err != nil {
		return nil, fmt.Errorf("find group ids to tag commands with: %w", err)
	}
	t := &tagRange{used: make(map[uint32]bool)}
	for line := range bytes.Lines(text) {
		var inside, outside, count uint64
		if n, err := fmt.Sscan(string(line), &inside, &outside, &count); n != 3 || err != nil {
			continue
		}
		end := inside + count
		switch {
		case inside <= firstTag && end >= firstTag+manyTags:
			t.first, t.size = firstTag, manyTags
			return t, nil
		case count/4 > uint64(t.size): // the last quarter of the largest piece
			t.size = uint32(count / 4)
			t.first = uint32(end - count/4)
		}
	}
	if t.size < 2*MaxCommands {
		return nil, errors.New("the user namespace maps too few group ids to tag commands with")
	}
	return t, nil
}

func (t *tagRange) take() (*tag, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range t.size {
		gid := t.first + t.next
		t.next = (t.next + 1) % t.size
		if !t.used[gid] {
			t.used[gid] = true
			return &tag{gid: gid, from: t}, nil
		}
	}
	return nil, wire.Failf(wire.ResourceExhausted, "", "no group id is left to tag a command with")
}

// tag is a group of processes that have one supplementary group id, which they
// cannot drop and nobody else has. It counts nothing.
type tag struct {
	gid  uint32
	from *tagRange

	mu    sync.Mutex
	clean bool
}

// Add does nothing: a leader takes on the tag itself.
func (t *tag) Add(int) error { return nil }

// Signal signals every process that has the tag, once.
func (t *tag) Signal(sig syscall.Signal) error {
	_, err := t.strike(sig)
	return err
}

// Kill scans and kills until two scans in a row have found nobody alive. What
// forks faster than a scan can follow, in spite of being scanned without a
// pause, stays: then it ends with ctx and an error.
func (t *tag) Kill(ctx context.Context) error {
	clean := 0
	for {
		alive, err := t.strike(syscall.SIGKILL)
		if err != nil {
			return err
		}
		if alive == 0 {
			if clean++; clean == 2 {
				t.mu.Lock()
				t.clean = true
				t.mu.Unlock()
				return nil
			}
			continue
		}
		clean = 0
		if ctx.Err() != nil {
			return fmt.Errorf("%d processes with tag %d are still alive: %w", alive, t.gid, context.Cause(ctx))
		}
		if alive < 4 { // let them die
			time.Sleep(200 * time.Microsecond)
		}
	}
}

// strike signals all that have the tag and are not dead, and counts them.
func (t *tag) strike(sig syscall.Signal) (int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return 0, fmt.Errorf("look for processes: %w", err)
	}
	defer proc.Close()
	self, found := os.Getpid(), 0
	buf := make([]byte, 16<<10)
	for {
		names, err := proc.Readdirnames(256)
		for _, name := range names {
			pid, err := strconv.Atoi(name)
			if err != nil || pid == self || pid <= 1 {
				continue
			}
			if hasTag(pid, t.gid, buf) {
				found++
				if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
					return found, fmt.Errorf("signal process %d: %w", pid, err)
				}
			}
		}
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, fmt.Errorf("look for processes: %w", err)
		}
	}
}

// hasTag says whether a living process has a supplementary group.
func hasTag(pid int, gid uint32, buf []byte) bool {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil || n <= 0 {
		return false
	}
	tagged, headless := statusHasTag(buf[:n], gid)
	if tagged && headless {
		dead, _ := ended(pid) // its other threads may be dead too, and kept by a tracer
		return !dead
	}
	return tagged
}

// statusHasTag reads proc_pid_status(5). A process whose first thread has ended looks dead while others may go on:
// then it is headless.
func statusHasTag(status []byte, gid uint32) (tagged, headless bool) {
	dead := false
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch string(key) {
		case "State":
			dead = len(value) > 0 && (value[0] == 'Z' || value[0] == 'X')
		case "Groups":
			for f := range bytes.FieldsSeq(value) {
				if n, err := strconv.ParseUint(string(f), 10, 32); err == nil && n == uint64(gid) {
					tagged = true
				}
			}
			if !tagged || !dead {
				return tagged, false
			}
		case "Threads":
			n, err := strconv.Atoi(string(value))
			headless = err == nil && n > 1
			return headless, headless
		}
	}
	return false, false
}

// Limit cannot be.
func (t *tag) Limit(int64, float64) error {
	return fmt.Errorf("%w: commands have no cgroups in this sandbox", cgroup.ErrUnsupported)
}

// Usage is nothing: nobody counts.
func (t *tag) Usage() (cgroup.Usage, error) { return cgroup.Usage{}, nil }

// Remove gives a tag back that nobody has any more.
func (t *tag) Remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.clean {
		t.from.mu.Lock()
		delete(t.from.used, t.gid)
		t.from.mu.Unlock()
	}
	return nil
}
