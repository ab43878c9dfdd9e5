package docker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// process refers to a container's first process by a pidfd, so that neither a signal nor a wait can
// reach a later process with the same pid.
type process struct {
	pid int
	f   *os.File
}

// openProcess returns a handle of pid if it is in the container's cgroup, whose path contains
// inside. NotFound: it is not, or no longer.
func openProcess(pid int, containerID, inside string) (*process, error) {
	if pid <= 0 {
		return nil, fmt.Errorf("container %.12s has no process: %w", containerID, errdefs.ErrNotFound)
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) {
		return nil, fmt.Errorf("process %d of container %.12s has ended: %w", pid, containerID, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("open process %d of container %.12s: %w", pid, containerID, err)
	}
	// Non-blocking, so that waiting occupies no thread.
	p := &process{pid: pid, f: os.NewFile(uintptr(fd), "pidfd")}
	in, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err == nil && !bytes.Contains(in, []byte(inside)) {
		return nil, errors.Join(fmt.Errorf("process %d is not of container %.12s: %w", pid, containerID, errdefs.ErrNotFound),
			p.close())
	}
	if err != nil || p.ended() {
		return nil, errors.Join(fmt.Errorf("process %d of container %.12s has ended: %w", pid, containerID,
			errdefs.ErrNotFound), p.close())
	}
	return p, nil
}

// kill sends SIGKILL. It succeeds if the process has already ended.
func (p *process) kill() error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if err == nil && sent != nil && !errors.Is(sent, unix.ESRCH) {
		err = sent
	}
	if err != nil {
		return fmt.Errorf("kill process %d: %w", p.pid, err)
	}
	return nil
}

func (p *process) ended() bool {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return false
	}
	var over bool
	_ = raw.Control(func(fd uintptr) { over = readable(fd) })
	return over
}

// wait returns nil when the process has ended, or the cause of ctx.
func (p *process) wait(ctx context.Context) error {
	raw, err := p.f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = p.f.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := raw.Read(readable); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return fmt.Errorf("wait for process %d: %w", p.pid, err)
	}
	return nil
}

func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0
}

func (p *process) close() error { return p.f.Close() }
