//go:build unix

package netpolicy

import (
	"math"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxOpen returns how many connections the process's descriptor limit allows.
func maxOpen() int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return math.MaxInt
	}
	return int(min(files.Cur/filesPerConnection, math.MaxInt))
}

// sendQueue returns how many bytes the kernel holds for a peer.
func sendQueue(fd uintptr) int {
	n, err := unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
	if err != nil {
		return 0
	}
	return n
}
