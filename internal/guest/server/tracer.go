package server

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// A process that has ended goes to its parent once no tracer keeps it: each of its threads stays a zombie until
// whoever traces that thread waits for it or ends. All commands of a sandbox may trace each other, so one could keep
// the end of another from the guest, or from the shell that waits for it.
//
// The guest does not forbid tracing. The one way to do so for commands of one user (a Landlock domain for each)
// would also hide their descriptors, and so the ports they listen on, from each other's lsof and fuser.

// traceTime is how long a tracer may take to wait for a process that has ended.
const traceTime = time.Second

// thread is what proc_pid_status(5) tells of a process or of one of its threads.
type thread struct {
	state   byte
	process int // the process it is a thread of
	parent  int // of the process
	tracer  int // the thread that traces it, 0 for none
	threads int // those of the process that were not reaped
}

func (t *thread) dead() bool { return t.state == 'Z' || t.state == 'X' }

// readThread reads a status file below /proc.
func readThread(name string) (thread, error) {
	text, err := os.ReadFile("/proc/" + name + "/status")
	if err != nil {
		return thread{}, err
	}
	var t thread
	for line := range bytes.Lines(text) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		n, _ := strconv.Atoi(string(value)) // 0 for what is no number
		switch string(key) {
		case "State":
			if len(value) > 0 {
				t.state = value[0]
			}
		case "Tgid":
			t.process = n
		case "PPid":
			t.parent = n
		case "TracerPid":
			t.tracer = n
		case "Threads":
			t.threads = n
		}
	}
	return t, nil
}

// gone says whether err means that a process or thread was reaped.
func gone(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// ended says whether every thread of a process is dead, and which processes other than its parent keep it from being
// reaped. One that was reaped has ended. gVisor shows no threads of a process whose first thread is dead: there one
// that had others has not ended until it was reaped.
func ended(pid int) (dead bool, keepers []int) {
	dir := strconv.Itoa(pid)
	first, err := readThread(dir)
	if err != nil || !first.dead() {
		return gone(err), nil
	}
	tracers, zombies := []int{first.tracer}, 1
	names, err := os.ReadDir("/proc/" + dir + "/task")
	if err != nil && !gone(err) {
		return false, nil
	}
	for _, name := range names {
		if name.Name() == dir {
			continue
		}
		t, err := readThread(dir + "/task/" + name.Name())
		if gone(err) {
			continue
		}
		if err != nil || !t.dead() {
			return false, nil
		}
		zombies++
		tracers = append(tracers, t.tracer)
	}
	for _, id := range tracers {
		if by, err := readThread(strconv.Itoa(id)); id > 0 && err == nil && by.process != first.parent {
			keepers = append(keepers, by.process)
		}
	}
	// A thread that began after the list was read is counted here.
	if first, err = readThread(dir); err != nil {
		return gone(err), nil
	}
	return first.threads <= zombies, keepers
}

// release kills those that keep a dead process, which then goes to its parent.
func (s *Server) release(pid int) {
	dead, keepers := ended(pid)
	if !dead {
		return
	}
	for _, keeper := range keepers {
		if keeper <= 1 || keeper == os.Getpid() {
			continue
		}
		s.Log.Warn("killing a process that keeps a dead one from its parent", "process", pid, "tracer", keeper)
		_ = unix.Kill(keeper, unix.SIGKILL) // it may have ended
	}
}

// watchTracers releases what tracers keep for longer than traceTime, while commands run. It returns when ctx ends.
func (s *Server) watchTracers(ctx context.Context) {
	tick := time.NewTicker(traceTime)
	defer tick.Stop()
	var before map[int]uint64
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if s.idle() {
			before = nil
			continue
		}
		before = s.releaseDead(before)
	}
}

// idle says whether nothing runs but shells of sessions that wait for a command.
func (s *Server) idle() bool {
	s.mu.Lock()
	running := len(s.running)
	s.mu.Unlock()
	return running == 0 || running <= s.idleSessions()
}

// releaseDead releases every dead process that was there at the last look, and returns those that are there now,
// with their start times.
func (s *Server) releaseDead(before map[int]uint64) map[int]uint64 {
	proc, err := os.Open("/proc")
	if err != nil {
		s.Log.Warn("look for dead processes", "error", err)
		return nil
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		s.Log.Warn("look for dead processes", "error", err)
		return nil
	}
	var dead map[int]uint64
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 1 {
			continue
		}
		m, ok := readMember(pid)
		if !ok || !m.dead {
			continue
		}
		if dead == nil {
			dead = map[int]uint64{}
		}
		dead[pid] = m.start
		if start, was := before[pid]; was && start == m.start {
			s.release(pid)
		}
	}
	return dead
}
