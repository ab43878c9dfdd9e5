package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// pipe has one end for the guest and one for the command.
type pipe struct {
	ours   *os.File
	theirs int // -1: closed
}

// newPipe makes a pipe. The guest gets the end for reading if read is set, and else the one for
// writing. The mode lets commands, which do not own the pipe, reopen their end by name, as with
// /dev/stdout.
func newPipe(read bool) (pipe, error) {
	mode := uint32(0o222)
	if !read {
		mode = 0o444
	}
	fd, err := pipeWithMode(mode)
	if err != nil {
		return pipe{theirs: -1}, fmt.Errorf("make a pipe: %w", err)
	}
	ours, theirs := fd[0], fd[1]
	if !read {
		ours, theirs = theirs, ours
	}
	if err := unix.SetNonblock(ours, true); err != nil {
		unix.Close(ours)
		unix.Close(theirs)
		return pipe{theirs: -1}, fmt.Errorf("make a pipe: %w", err)
	}
	return pipe{ours: os.NewFile(uintptr(ours), "pipe"), theirs: theirs}, nil
}

// pipeWithMode makes a pipe. Both ends are blocking.
func pipeWithMode(mode uint32) (fd [2]int, err error) {
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return fd, err
	}
	err = unix.Fchmod(fd[0], mode)
	if err == nil {
		return fd, nil
	}
	unix.Close(fd[0])
	unix.Close(fd[1])
	if errors.Is(err, unix.EPERM) { // gVisor rejects fchmod on anonymous pipes, but allows it on FIFOs
		return fifoWithMode(mode)
	}
	return fd, err
}

// fifos numbers the temporary names of FIFOs.
//
//nolint:gochecknoglobals // names are unique within the process
var fifos atomic.Int64

// fifoWithMode makes a pipe from a FIFO in the guest's private directory and removes its name.
func fifoWithMode(mode uint32) (fd [2]int, err error) {
	name := filepath.Join(wire.PrivateDir, "pipe-"+strconv.FormatInt(fifos.Add(1), 10))
	if err := unix.Mkfifo(name, 0o600); err != nil {
		return fd, err
	}
	defer func() { err = errors.Join(err, unix.Unlink(name)) }()
	if fd[0], err = unix.Open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
		return fd, err
	}
	if fd[1], err = unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC, 0); err != nil {
		unix.Close(fd[0])
		return fd, err
	}
	if err := errors.Join(unix.SetNonblock(fd[0], false), unix.Chmod(name, mode)); err != nil {
		unix.Close(fd[0])
		unix.Close(fd[1])
		return fd, err
	}
	return fd, nil
}
