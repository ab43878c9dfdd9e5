package leader

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The runtime blocks all signals around a fork, so that no handler runs in the
// child. The third of the family, for the child, is not needed: signals stay
// blocked there, and every disposition is reset by hand.
//
//go:linkname runtimeBeforeFork syscall.runtime_BeforeFork
func runtimeBeforeFork()

//go:linkname runtimeAfterFork syscall.runtime_AfterFork
func runtimeAfterFork()

const (
	ctlFD    = 3  // where the parked child keeps its end of the socket pair
	signals  = 64 // of the kernel; the last one too
	sigBytes = signals / 8
)

// Steps that can go wrong in the child, in their order.
const (
	stepReceive = iota + 1
	stepGroups
	stepGID
	stepUID
	stepChdir
	stepExec
)

// header is at the start of the blob that a parked child receives. Pointers
// are addresses in the child, where the blob always starts at the same one.
type header struct {
	total   uintptr // bytes of the whole blob
	argv    uintptr // char *[], ended by NULL
	envp    uintptr
	paths   uintptr // char *[], what execve tries one after the other
	dir     uintptr // char *
	groups  uintptr // gid_t[]
	npaths  uintptr
	ngroups uintptr
	uid     uintptr
	gid     uintptr
}

// childMem is all that the child reads and writes besides the blob. It is made
// before the fork and must stay reachable until then.
type childMem struct {
	ctl    uintptr
	maxFD  uintptr
	region uintptr // where the blob goes
	size   uintptr
	msg    unix.Msghdr
	iov    unix.Iovec
	oob    [64]byte
	act    [4]uint64 // struct kernel_sigaction: default, no flags, empty mask
	mask   [sigBytes]byte
	report [2]uint64 // step, errno
}

// fork makes the parked child and returns its pid. The caller holds
// syscall.ForkLock.
//
//go:noinline
//go:norace
//go:nocheckptr
func fork(m *childMem) (uintptr, syscall.Errno) {
	runtimeBeforeFork()
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		runtimeAfterFork()
		return pid, errno
	}
	// The child, from here to its end: no calls but raw system calls, no
	// allocation, no pointer stores, nothing that could grow the stack.
	if m.ctl != ctlFD {
		syscall.RawSyscall(unix.SYS_DUP3, m.ctl, ctlFD, unix.O_CLOEXEC)
	}
	for fd := uintptr(0); fd < ctlFD; fd++ {
		syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_CLOSE_RANGE, ctlFD+1, uintptr(^uint32(0)), 0); errno != 0 {
		for fd := uintptr(ctlFD + 1); fd < m.maxFD; fd++ {
			syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
		}
	}
	for sig := uintptr(1); sig <= signals; sig++ {
		syscall.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&m.act)), 0, sigBytes, 0, 0)
	}
	syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	syscall.RawSyscall(unix.SYS_UMASK, 0o022, 0, 0)
	syscall.RawSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)

	var step, total, have uintptr
	var h *header
	for have < unsafe.Sizeof(header{}) || have < total {
		var n uintptr
		if have == 0 {
			// With 0, 1 and 2 closed the three descriptors arrive as just these.
			n, _, errno = syscall.RawSyscall(unix.SYS_RECVMSG, ctlFD, uintptr(unsafe.Pointer(&m.msg)), 0)
		} else {
			n, _, errno = syscall.RawSyscall(unix.SYS_READ, ctlFD, m.region+have, m.size-have)
		}
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || n == 0 || n > m.size-have {
			goto exit // the guest let it go, or is gone
		}
		have += n
		h = *(**header)(unsafe.Pointer(&m.region))
		if have >= unsafe.Sizeof(header{}) {
			total = h.total
		}
	}
	step, errno = stepReceive, syscall.EBADF
	if m.msg.Flags&unix.MSG_CTRUNC != 0 {
		goto fail
	}
	step = stepGroups
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETGROUPS, h.ngroups, h.groups, 0); errno != 0 {
		goto fail
	}
	step = stepGID
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETRESGID, h.gid, h.gid, h.gid); errno != 0 {
		goto fail
	}
	step = stepUID
	if _, _, errno = syscall.RawSyscall(unix.SYS_SETRESUID, h.uid, h.uid, h.uid); errno != 0 {
		goto fail
	}
	step = stepChdir
	if _, _, errno = syscall.RawSyscall(unix.SYS_CHDIR, h.dir, 0, 0); errno != 0 {
		goto fail
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&m.mask)), 0, sigBytes, 0, 0)
	step = stepExec
	for i, denied := uintptr(0), false; ; i++ {
		if i == h.npaths {
			errno = syscall.ENOENT
			if denied {
				errno = syscall.EACCES
			}
			break
		}
		slot := h.paths + i*unsafe.Sizeof(i)
		_, _, errno = syscall.RawSyscall(unix.SYS_EXECVE, **(**uintptr)(unsafe.Pointer(&slot)), h.argv, h.envp)
		if errno == syscall.EACCES {
			denied = true
		} else if errno != syscall.ENOENT && errno != syscall.ENOTDIR {
			break
		}
	}
fail:
	m.report[0], m.report[1] = uint64(step), uint64(errno)
	syscall.RawSyscall(unix.SYS_WRITE, ctlFD, uintptr(unsafe.Pointer(&m.report)), unsafe.Sizeof(m.report))
exit:
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}
