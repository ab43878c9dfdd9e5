//go:build unix

// Package descriptors asks the kernel about file descriptors. It keeps nothing.
package descriptors

import (
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

// Limit returns how many descriptors this process may have.
func Limit() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return math.MaxInt
	}
	return int(min(files.Cur, math.MaxInt))
}

// SendQueue returns how many bytes the kernel holds for the peer of a socket, or 0 if it does not
// tell.
func SendQueue(fd uintptr) int {
	n, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}
