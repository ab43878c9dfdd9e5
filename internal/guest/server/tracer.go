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

// A parent learns of its child's end only after the tracers are done with it: each thread stays a
// zombie until its tracer waits for it or exits. All commands of a sandbox may trace each other. So
// a command could hide the end of another one from the guest, or from the shell that waits for it.
//
// The guest does not forbid tracing. Commands of one user could only be separated by a Landlock
// domain each, which would also hide their descriptors, and thus their listening ports, from each
// other's lsof and fuser.
//
// tracerTimeout is how long a tracer may take to wait for a process that has ended.

// tracerTimeout is how long a tracer may take to wait for a process that has ended.
const tracerTimeout = time.Second

// thread holds fields of proc_pid_status(5) of a process or one of its threads.
type thread struct {
	state   byte
	process int // process id of the thread
	parent  int // of the process
	tracer  int // id of the tracing thread; 0: none
	threads int // number of the process's threads that were not reaped
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
		n, _ := strconv.Atoi(string(value)) // 0 if not a number
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

// isReaped reports whether err means that a process or thread was reaped.
func isReaped(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// processEnded reports whether every thread of a process is dead, and which processes other than
// its parent keep it from being reaped. A reaped process has ended. gVisor hides the threads of a
// process whose first thread is dead: such a process counts as ended only once it is reaped.
func processEnded(pid int) (dead bool, keepers []int) {
	dir := strconv.Itoa(pid)
	first, err := readThread(dir)
	if err != nil || !first.dead() {
		return isReaped(err), nil
	}
	tracers, zombies := []int{first.tracer}, 1
	names, err := os.ReadDir("/proc/" + dir + "/task")
	if err != nil && !isReaped(err) {
		return false, nil
	}
	for _, name := range names {
		if name.Name() == dir {
			continue
		}
		t, err := readThread(dir + "/task/" + name.Name())
		if isReaped(err) {
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
	// This count includes threads that were started after the list was read.
	if first, err = readThread(dir); err != nil {
		return isReaped(err), nil
	}
	return first.threads <= zombies, keepers
}

// killKeepers kills the processes that keep a dead process from its parent.
func (s *Server) killKeepers(pid int) {
	dead, keepers := processEnded(pid)
	if !dead {
		return
	}
	for _, keeper := range keepers {
		if keeper <= 1 || keeper == os.Getpid() {
			continue
		}
		s.Log.Warn("killing a tracer that holds a dead process", "process", pid, "tracer", keeper)
		_ = unix.Kill(keeper, unix.SIGKILL) // it may have ended
	}
}

// watchTracers kills tracers that hold a dead process for longer than tracerTimeout, while commands
// run. It returns when ctx ends.
func (s *Server) watchTracers(ctx context.Context) {
	tick := time.NewTicker(tracerTimeout)
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

// idle reports whether only shells of sessions run, and these wait for a command.
func (s *Server) idle() bool {
	s.mu.Lock()
	running := len(s.running)
	s.mu.Unlock()
	return running == 0 || running <= s.idleSessions()
}

// releaseDead calls killKeepers for every dead process that is also in before. It returns the
// processes that are dead now, with their start times.
func (s *Server) releaseDead(before map[int]uint64) map[int]uint64 {
	proc, err := os.Open("/proc")
	if err != nil {
		s.Log.Warn("failed to list dead processes", "error", err)
		return nil
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		s.Log.Warn("failed to list dead processes", "error", err)
		return nil
	}
	var dead map[int]uint64
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil || pid <= 1 {
			continue
		}
		m, ok := readProcInfo(pid)
		if !ok || !m.dead {
			continue
		}
		if dead == nil {
			dead = map[int]uint64{}
		}
		dead[pid] = m.start
		if start, was := before[pid]; was && start == m.start {
			s.killKeepers(pid)
		}
	}
	return dead
}
