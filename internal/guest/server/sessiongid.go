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

// gidSession is a sessionGroup without cgroups: all processes of the session share one group id.
// The processes of the current command are those that neither existed before it nor descend from
// one that did. An orphan's ancestors are unknown, so it counts as the command's.
type gidSession struct {
	*gidGroup
	shell int

	mu     sync.Mutex
	before map[int]uint64 // pid to start time
}

// procInfo describes a process of a session.
type procInfo struct {
	parent int
	start  uint64 // in ticks since boot
	dead   bool   // its first thread is dead
}

func (t *gidSession) beginCommand() error {
	now, err := t.processes()
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

// processes lists the processes with the session's group id.
func (t *gidSession) processes() (map[int]procInfo, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	found, buf := map[int]procInfo{}, make([]byte, 16<<10)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 1 || !hasGroup(pid, t.gid, buf) {
			continue
		}
		if m, ok := readProcInfo(pid); ok {
			found[pid] = m
		}
	}
	return found, nil
}

// readProcInfo reads proc_pid_stat(5). The process name in it may contain any characters.
func readProcInfo(pid int) (procInfo, bool) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procInfo{}, false
	}
	_, rest, ok := bytes.Cut(text[max(0, bytes.LastIndexByte(text, ')')):], []byte(" "))
	fields := bytes.Fields(rest) // from the third field on
	if !ok || len(fields) < 20 {
		return procInfo{}, false
	}
	parent, err1 := strconv.Atoi(string(fields[1]))
	start, err2 := strconv.ParseUint(string(fields[19]), 10, 64)
	dead := fields[0][0] == 'Z' || fields[0][0] == 'X'
	return procInfo{parent: parent, start: start, dead: dead}, err1 == nil && err2 == nil
}

// predatesCommand reports whether a process existed before the command, or descends from one that
// did.
func predatesCommand(pid int, now map[int]procInfo, before map[int]uint64) bool {
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

// signalCommand signals the command's processes except the shell, and counts them.
func (t *gidSession) signalCommand(sig syscall.Signal) (int, error) {
	now, err := t.processes()
	if err != nil {
		return 0, err
	}
	t.mu.Lock()
	before := t.before
	t.mu.Unlock()
	n := 0
	for pid := range now {
		if pid == t.shell || predatesCommand(pid, now, before) {
			continue
		}
		n++
		_ = unix.Kill(pid, sig) // it may have ended
	}
	return n, nil
}

func (t *gidSession) interruptCommand() {
	_ = unix.Kill(t.shell, unix.SIGINT) // it may have ended
	_, _ = t.signalCommand(unix.SIGINT) // missed processes are killed later
}

func (t *gidSession) killCommand(ctx context.Context) error {
	for {
		n, err := t.signalCommand(unix.SIGKILL)
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

func (t *gidSession) commandUsage() cgroup.Usage { return cgroup.Usage{} }
