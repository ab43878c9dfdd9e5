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

// The ids are at the upper end of those that the user namespace maps, where nothing else uses them.
const (
	firstGID = 0x7f00_0000
	gidCount = 0x0040_0000
)

// gidRange allocates group ids. An id whose processes could not all be killed is never reused.
type gidRange struct {
	mu          sync.Mutex
	first, size uint32
	next        uint32
	used        map[uint32]bool
}

func newGIDRange() (*gidRange, error) {
	text, err := os.ReadFile("/proc/self/gid_map")
	if err != nil {
		return nil, fmt.Errorf("find group ids for commands: %w", err)
	}
	t := &gidRange{used: make(map[uint32]bool)}
	for line := range bytes.Lines(text) {
		var inside, outside, count uint64
		if n, err := fmt.Sscan(string(line), &inside, &outside, &count); n != 3 || err != nil {
			continue
		}
		end := inside + count
		switch {
		case inside <= firstGID && end >= firstGID+gidCount:
			t.first, t.size = firstGID, gidCount
			return t, nil
		case count/4 > uint64(t.size): // use the last quarter of the largest range
			t.size = uint32(count / 4)
			t.first = uint32(end - count/4)
		}
	}
	if t.size < 2*MaxCommands {
		return nil, errors.New("the user namespace maps too few group ids for commands")
	}
	return t, nil
}

func (t *gidRange) acquire() (*gidGroup, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range t.size {
		gid := t.first + t.next
		t.next = (t.next + 1) % t.size
		if !t.used[gid] {
			t.used[gid] = true
			return &gidGroup{gid: gid, owner: t}, nil
		}
	}
	return nil, wire.Failf(wire.ResourceExhausted, "", "all group ids for commands are in use")
}

// gidGroup is a group of processes that share a supplementary group id. The processes cannot drop
// the id and no others have it. It has no counters.
type gidGroup struct {
	gid   uint32
	owner *gidRange

	mu    sync.Mutex
	clean bool
}

// Add does nothing: the process adopts the group id itself.
func (t *gidGroup) Add(int) error { return nil }

// Signal signals every process with the group id once.
func (t *gidGroup) Signal(sig syscall.Signal) error {
	_, err := t.signalAll(sig)
	return err
}

// Kill scans and kills until two scans in a row find no living process. If processes fork faster
// than a scan can follow, Kill returns an error when ctx ends.
func (t *gidGroup) Kill(ctx context.Context) error {
	clean := 0
	for {
		alive, err := t.signalAll(syscall.SIGKILL)
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
			return fmt.Errorf("%d processes with group id %d are still alive: %w", alive, t.gid, context.Cause(ctx))
		}
		if alive < 4 { // give them time to die
			time.Sleep(200 * time.Microsecond)
		}
	}
}

// signalAll signals all living processes with the group id and counts them.
func (t *gidGroup) signalAll(sig syscall.Signal) (int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
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
			if hasGroup(pid, t.gid, buf) {
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
			return found, fmt.Errorf("list processes: %w", err)
		}
	}
}

// hasGroup reports whether pid is alive and has the supplementary group.
func hasGroup(pid int, gid uint32, buf []byte) bool {
	fd, err := unix.Open("/proc/"+strconv.Itoa(pid)+"/status", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	n, err := unix.Read(fd, buf)
	if err != nil || n <= 0 {
		return false
	}
	tagged, headless := statusHasGroup(buf[:n], gid)
	if tagged && headless {
		dead, _ := processEnded(pid) // a tracer may hold its other threads, dead too
		return !dead
	}
	return tagged
}

// statusHasGroup parses proc_pid_status(5). headless is set for a process whose first thread has
// ended while others remain: it looks dead but may be alive.
func statusHasGroup(status []byte, gid uint32) (tagged, headless bool) {
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

// Limit is not supported.
func (t *gidGroup) Limit(int64, float64) error {
	return fmt.Errorf("%w: this sandbox has no cgroups for commands", cgroup.ErrUnsupported)
}

// Usage returns zero: there are no counters.
func (t *gidGroup) Usage() (cgroup.Usage, error) { return cgroup.Usage{}, nil }

// Remove returns the group id for reuse if all its processes are dead.
func (t *gidGroup) Remove() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.clean {
		t.owner.mu.Lock()
		delete(t.owner.used, t.gid)
		t.owner.mu.Unlock()
	}
	return nil
}
