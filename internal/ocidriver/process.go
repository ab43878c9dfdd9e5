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

// Process is a hold on one process that no reuse of its pid can turn into another. A nil one is a process that is gone.
type Process struct {
	Pid     int
	Started uint64 // clock ticks after boot
	file    *os.File
	raw     syscall.RawConn
}

// Open takes hold of a process; os.ErrNotExist if there is none.
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
		err = p.file.SetReadDeadline(time.Time{}) // an error: the descriptor cannot be waited for
	}
	if err == nil {
		// Read after the descriptor is open: it is that of the process we hold, or the process is gone.
		p.Started, err = StartTime(pid)
	}
	if err != nil {
		p.Close()
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	return p, nil
}

// StartTime is field 22 of /proc/<pid>/stat. The process chose the second field itself, so fields are counted from the last parenthesis.
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

// Ended says whether the process has, without waiting.
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

// Block waits for the end without a thread of its own. False: the hold was closed first.
func (p *Process) Block() bool {
	return p.raw.Read(func(fd uintptr) bool { return readable(fd, 0) }) == nil
}

// Kill ends the process, and with it all others of its pid namespace; it does not wait.
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

// Wait returns when the process has ended, which for the first of a pid namespace is after all others.
func (p *Process) Wait(ctx context.Context) error {
	if p == nil {
		return nil
	}
	const slice = 100 * time.Millisecond // so long does a poll outlive ctx
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

// Reap collects the process in case it is our child: where the orchestrator is PID 1 or a subreaper, what the runtime left comes to it.
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

// BootID is what the kernel calls this boot.
func BootID() (string, error) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("boot id: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}
