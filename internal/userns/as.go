package userns

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// As calls f on a thread that makes files as user and group 0 of a namespace of New, with the
// capabilities of this process. It is for mounting an overlay that writes through idmapped
// layers: the overlay goes on making files as the thread that mounted it, and this process's own
// user has no id in such layers. f must not start goroutines that make files.
func As(namespace *os.File, f func() error) error {
	first, err := owner(namespace)
	if err != nil {
		return fmt.Errorf("owner of user namespace: %w", err)
	}
	done := make(chan error, 1)
	go func() { // waited for below
		runtime.LockOSThread()
		err := setFileUser(first)
		if err == nil {
			err = errors.Join(raiseCapabilities(), f())
		}
		if setFileUser(0) == nil && raiseCapabilities() == nil {
			runtime.UnlockOSThread() // otherwise the thread ends with this goroutine
		}
		done <- err
	}()
	return <-done
}

// owner returns the user who made a namespace: for one of New the host's id of user 0 inside.
func owner(namespace *os.File) (uint32, error) {
	var uid uint32
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, namespace.Fd(), unix.NS_GET_OWNER_UID,
		uintptr(unsafe.Pointer(&uid))) //nolint:gosec // the kernel writes a uid_t there
	if errno != 0 {
		return 0, errno
	}
	return uid, nil
}

// setFileUser sets the user and group of the calling thread for files.
func setFileUser(id uint32) error {
	for _, call := range []uintptr{unix.SYS_SETFSGID, unix.SYS_SETFSUID} {
		_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0) // returns the former id, whatever happens
		if now, _, _ := unix.RawSyscall(call, ^uintptr(0), 0, 0); uint32(now) != id {
			return fmt.Errorf("make files as user %d: still user %d", id, now)
		}
	}
	return nil
}
