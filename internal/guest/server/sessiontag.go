package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// tagFold is a fold where there are no cgroups: everything of the session has
// one tag. A command's are those that were not there before it and do not come
// of one that was; of what lost its parent meanwhile that cannot be told, and
// it counts as the command's.
type tagFold struct {
	*tag
	shell int

	mu     sync.Mutex
	before map[int]uint64 // pid to start time
}

// member is a process of a session.
type member struct {
	parent int
	start  uint64 // in ticks since the kernel's start
	dead   bool   // its first thread is
}

func (t *tagFold) next() error {
	now, err := t.members()
	if err != nil {
		return err
	}
	before := make(map[int]uint64, len(now))
	for pid, m := range now {
		if pid != t.shell {
			before[pid] = m.start
		}
	}
	t.mu.Lock()
	t.before = before
	t.mu.Unlock()
	return nil
}

// members lists the processes with the tag.
func (t *tagFold) members() (map[int]member, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("look for processes: %w", err)
	}
	found, buf := map[int]member{}, make([]byte, 16<<10)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 1 || !hasTag(pid, t.gid, buf) {
			continue
		}
		if m, ok := readMember(pid); ok {
			found[pid] = m
		}
	}
	return found, nil
}

// readMember reads proc_pid_stat(5). The name in it may hold anything.
func readMember(pid int) (member, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return member{}, false
	}
	_, rest, ok := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(" "))
	fields := bytes.Fields(rest) // from the third one on
	if !ok || len(fields) < 20 {
		return member{}, false
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	start, err2 := strconv.ParseUint(string(fields[19]), 10, 64)
	dead := fields[0][0] == 'Z' || fields[0][0] == 'X'
	return member{parent: parent, start: start, dead: dead}, err1 == nil && err2 == nil
}

// strange says whether a process was there before the command, or comes of one
// that was.
func strange(pid int, now map[int]member, before map[int]uint64) bool {
	for range len(now) + 1 {
		m, ok := now[pid]
		if !ok {
			return false
		}
		if start, was := before[pid]; was && start == m.start {
			return true
		}
		pid = m.parent
	}
	return false
}

// hit signals what is of the command, but the shell, and counts it.
func (t *tagFold) hit(sig syscall.Signal) (int, error) {
	now, err := t.members()
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	before := t.before
	t.mu.Unlock()
	n := 0
	for pid := range now {
		if pid == t.shell || strange(pid, now, before) {
			continue
		}
		n++
		_ = unix.Kill(pid, sig) // it may have ended
	}
	return n, nil
}

func (t *tagFold) interrupt() {
	_ = unix.Kill(t.shell, unix.SIGINT) // it may have ended
	_, _ = t.hit(unix.SIGINT)           // what is missed is killed
}

func (t *tagFold) strike(ctx context.Context) error {
	for {
		n, err := t.hit(unix.SIGKILL)
		if err != nil || n == 0 {
			return err
		}
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (t *tagFold) spent() cgroup.Usage { return cgroup.Usage{} }
