package ocidriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Process refers to one process, by a pidfd, so that a reuse of its pid cannot confuse it. A nil
// Process has ended.
type Process struct {
	Pid     int
	Started uint64 // in clock ticks since boot
	file    *os.File
	raw     syscall.RawConn
}

// Open returns a handle of a process, or os.ErrNotExist.
func Open(pid int) (*Process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d: %w", pid, os.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	p := &Process{Pid: pid, file: os.NewFile(uintptr(fd), "pidfd")}
	if p.raw, err = p.file.SyscallConn(); err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // an error: the descriptor cannot be polled
	}
	if err == nil {
		// Read after the descriptor is open: the value belongs to the process we hold, or the
		// process is gone.
		p.Started, err = StartTime(pid)
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return p, nil
}

// StartTime returns field 22 of /proc/PID/stat. The process controls the second field, so fields
// are counted from the last parenthesis.
func StartTime(pid int) (uint64, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		return 0, os.ErrNotExist
	}
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("stat of process %d has %d fields", pid, len(fields))
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, os.ErrNotExist
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Ended reports whether the process has ended, without waiting.
func (p *Process) Ended() bool {
	if p == nil {
		return true
	}
	over := false
	err := p.raw.Control(func(fd uintptr) { over = readable(fd, 0) })
	return over || err != nil
}

func readable(fd uintptr, wait time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, int(wait.Milliseconds()))
	return err == nil && n > 0
}

// Block waits for the end of the process without occupying a thread. It returns false if the handle
// was closed first.
func (p *Process) Block() bool {
	return p.raw.Read(func(fd uintptr) bool { return readable(fd, 0) }) == nil
}

// Kill sends SIGKILL, which ends all processes of its pid namespace too. It does not wait.
func (p *Process) Kill() error {
	if p == nil {
		return nil
	}
	var err error
	if cerr := p.raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); cerr != nil {
		return cerr
	}
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	return err
}

// Wait returns when the process has ended. The first process of a pid namespace ends after all
// others.
func (p *Process) Wait(ctx context.Context) error {
	if p == nil {
		return nil
	}
	const slice = 100 * time.Millisecond // the longest time a poll outlives ctx
	for {
		over := false
		if err := p.raw.Control(func(fd uintptr) { over = readable(fd, slice) }); err != nil {
			return err
		}
		if over {
			p.Reap()
			return nil
		}
		if ctx.Err() != nil {
			return fmt.Errorf("process %d has not ended: %w", p.Pid, context.Cause(ctx))
		}
	}
}

// EndsSoon reports whether the process ends within a moment. An operation on a sandbox can fail a
// moment before the process that causes the failure is gone.
func (p *Process) EndsSoon(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	return p.Wait(ctx) == nil
}

// Reap collects the process in case it is our child: if the orchestrator is PID 1 or a subreaper,
// it inherits what the runtime left.
func (p *Process) Reap() {
	_ = p.raw.Control(func(fd uintptr) {
		_ = unix.Waitid(unix.P_PIDFD, int(fd), nil, unix.WEXITED|unix.WNOHANG, nil)
	})
}

func (p *Process) Close() {
	if p != nil {
		_ = p.file.Close()
	}
}

// BootID returns the kernel's id of this boot.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
