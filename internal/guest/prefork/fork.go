package prefork

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
	ctlFD    = 3  // descriptor of a child's end of its socket pair
	fileFD   = 4  // descriptor on which [Program.File] arrives
	signals  = 64 // number of signals in the kernel, the last one included
	sigBytes = signals / 8
	pageSize = 4096 // a lower bound is enough: addresses are only rounded generously
	// keepStack is how much of its stack the zygote keeps on either side of the current frame.
	keepStack = 64 << 10
)

// Steps that can fail in the child, in their order.
const (
	stepReceive = iota + 1
	stepGroups
	stepGID
	stepUID
	stepTerminal
	stepChdir
	stepExec
)

// header is the start of the blob that a parked child receives. Pointers are addresses in the
// child, where every blob is placed at the same address.
type header struct {
	total   uintptr // size of the whole blob in bytes
	argv    uintptr // char *[], terminated by NULL
	envp    uintptr
	paths   uintptr // char *[], tried by execve in order
	dir     uintptr // char *
	groups  uintptr // gid_t[]
	npaths  uintptr
	ngroups uintptr
	uid     uintptr
	gid     uintptr
	tty     uintptr // 1: descriptor 0 becomes the controlling terminal
	file    uintptr // fileFD if a file is executed instead of paths
	empty   uintptr // empty string: the name that execveat needs for that file
}

// childMem is all memory that the zygote and the parked processes use besides the blob. It is at
// the start of their buffer and is filled before the fork.
type childMem struct {
	ctl          uintptr
	maxFD        uintptr
	region       uintptr // address for the blob
	size         uintptr
	forkInbox    inbox     // of the zygote: receives one byte and a socket
	programInbox inbox     // of a parked process: receives a blob and up to four descriptors
	act          [4]uint64 // struct kernel_sigaction: default, no flags, empty mask
	mask         [sigBytes]byte
	report       [2]uint64 // step and errno; from the zygote: pid and errno
	releasable   [maxReleasable]span
	nreleasable  uintptr
}

// inbox holds the arguments of recvmsg.
type inbox struct {
	msg unix.Msghdr
	iov unix.Iovec
	oob [64]byte
	one [8]byte
}

// span is a memory range that the zygote releases.
type span struct{ from, to uintptr }

// maxReleasable is the maximum number of released ranges. A Go program has about twenty.
const maxReleasable = 128

// forkZygote makes the nursery and returns its pid. The caller holds
// syscall.ForkLock.
//
//go:noinline
//go:norace
//go:nocheckptr
func forkZygote(m *childMem) (uintptr, syscall.Errno) {
	runtimeBeforeFork()
	pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, uintptr(syscall.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || pid != 0 {
		runtimeAfterFork()
		return pid, errno
	}
	// From here on, in every process forked from here: only raw system calls, no allocation, no
	// pointer stores, and nothing that could grow the stack.
	detachProcess(m)
	releaseMemory(m)
	serveForks(m)
	for {
		syscall.RawSyscall(unix.SYS_EXIT_GROUP, 127, 0, 0)
	}
}

// detachProcess gives up descriptors, session and signal handlers. The rules of fork
// hold here and in all that follows.
//
//go:nosplit
//go:norace
//go:nocheckptr
func detachProcess(m *childMem) {
	if m.ctl != ctlFD {
		syscall.RawSyscall(unix.SYS_DUP3, m.ctl, ctlFD, unix.O_CLOEXEC)
	}
	for fd := uintptr(0); fd < ctlFD; fd++ {
		syscall.RawSyscall(unix.SYS_CLOSE, fd, 0, 0)
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_CLOSE_RANGE, ctlFD+1, uintptr(^uint32(0)), 0); errno != 0 {
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
}

// releaseMemory gives back all memory but the buffer and the stack. It is emptied, not
// unmapped: with the C library the kernel itself writes to a place in it (rseq)
// for as long as the thread lives.
//
//go:nosplit
//go:norace
//go:nocheckptr
func releaseMemory(m *childMem) {
	var here byte
	low := uintptr(unsafe.Pointer(&here))&^(pageSize-1) - keepStack
	high := low + 2*keepStack
	for i := uintptr(0); i < m.nreleasable && i < maxReleasable; i++ {
		s := &m.releasable[i]
		if s.to <= low || s.from >= high {
			syscall.RawSyscall(unix.SYS_MADVISE, s.from, s.to-s.from, unix.MADV_DONTNEED)
			continue
		}
		if s.from < low {
			syscall.RawSyscall(unix.SYS_MADVISE, s.from, low-s.from, unix.MADV_DONTNEED)
		}
		if s.to > high {
			syscall.RawSyscall(unix.SYS_MADVISE, high, s.to-high, unix.MADV_DONTNEED)
		}
	}
}

// serveForks forks leaders when told to. It returns when the guest is gone, and in
// a leader that is not needed or could not become what it was to.
//
//go:nosplit
//go:norace
//go:nocheckptr
func serveForks(m *childMem) {
	for {
		// Descriptor 0 is closed, so the socket for the next process arrives as 0.
		m.forkInbox.msg.SetControllen(len(m.forkInbox.oob))
		n, _, errno := syscall.RawSyscall(unix.SYS_RECVMSG, ctlFD, uintptr(unsafe.Pointer(&m.forkInbox.msg)), 0)
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || n == 0 {
			return
		}
		flags, twice := uintptr(syscall.SIGCHLD)|unix.CLONE_PARENT, m.forkInbox.one[0] == forkOrphan
		if twice {
			flags = uintptr(syscall.SIGCHLD)
		}
		pid, _, errno := syscall.RawSyscall6(syscall.SYS_CLONE, flags, 0, 0, 0, 0, 0)
		if errno == 0 && pid == 0 {
			if twice {
				// This intermediate process forks the parked process, reports its pid and exits, so
				// that PID 1 inherits it.
				pid, _, errno = syscall.RawSyscall6(syscall.SYS_CLONE, flags, 0, 0, 0, 0, 0)
				if errno != 0 || pid != 0 {
					m.report[0], m.report[1] = uint64(pid), uint64(errno)
					syscall.RawSyscall(unix.SYS_WRITE, ctlFD, uintptr(unsafe.Pointer(&m.report)), unsafe.Sizeof(m.report))
					syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
				}
			}
			syscall.RawSyscall(unix.SYS_DUP3, 0, ctlFD, unix.O_CLOEXEC)
			syscall.RawSyscall(unix.SYS_CLOSE, 0, 0, 0)
			syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
			awaitProgram(m)
			return
		}
		syscall.RawSyscall(unix.SYS_CLOSE, 0, 0, 0)
		if twice && errno == 0 {
			for errno = syscall.EINTR; errno == syscall.EINTR; {
				_, _, errno = syscall.RawSyscall6(unix.SYS_WAIT4, pid, 0, 0, 0, 0, 0)
			}
			continue
		}
		m.report[0], m.report[1] = uint64(pid), uint64(errno)
		syscall.RawSyscall(unix.SYS_WRITE, ctlFD, uintptr(unsafe.Pointer(&m.report)), unsafe.Sizeof(m.report))
	}
}

// awaitProgram waits for a program and becomes it. It returns when it cannot, or is
// not needed.
//
//go:nosplit
//go:norace
//go:nocheckptr
func awaitProgram(m *childMem) {
	var have, total uintptr
	h := *(**header)(unsafe.Pointer(&m.region))
	for have < unsafe.Sizeof(header{}) || have < total {
		var n uintptr
		var errno syscall.Errno
		if have == 0 {
			// Descriptors 0, 1 and 2 are closed, so the three descriptors arrive with these
			// numbers, and a fourth as fileFD.
			n, _, errno = syscall.RawSyscall(unix.SYS_RECVMSG, ctlFD, uintptr(unsafe.Pointer(&m.programInbox.msg)), 0)
		} else {
			n, _, errno = syscall.RawSyscall(unix.SYS_READ, ctlFD, m.region+have, m.size-have)
		}
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 || n == 0 || n > m.size-have {
			return // the guest discarded this process, or has exited
		}
		have += n
		if have >= unsafe.Sizeof(header{}) {
			total = h.total
		}
	}
	step, errno := execProgram(m, h)
	m.report[0], m.report[1] = uint64(step), uint64(errno)
	syscall.RawSyscall(unix.SYS_WRITE, ctlFD, uintptr(unsafe.Pointer(&m.report)), unsafe.Sizeof(m.report))
}

// execProgram takes on identity and place, and execs. It returns the step that
// failed.
//
//go:nosplit
//go:norace
//go:nocheckptr
func execProgram(m *childMem, h *header) (int, syscall.Errno) {
	if m.programInbox.msg.Flags&unix.MSG_CTRUNC != 0 {
		return stepReceive, syscall.EBADF
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, h.ngroups, h.groups, 0); errno != 0 {
		return stepGroups, errno
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESGID, h.gid, h.gid, h.gid); errno != 0 {
		return stepGID, errno
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, h.uid, h.uid, h.uid); errno != 0 {
		return stepUID, errno
	}
	if h.tty != 0 {
		// The process leads its own session, which has no terminal yet: see serveForks.
		if _, _, errno := syscall.RawSyscall(unix.SYS_IOCTL, 0, unix.TIOCSCTTY, 0); errno != 0 {
			return stepTerminal, errno
		}
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_CHDIR, h.dir, 0, 0); errno != 0 {
		return stepChdir, errno
	}
	syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(&m.mask)), 0, sigBytes, 0, 0)
	if h.file != 0 {
		syscall.RawSyscall(unix.SYS_FCNTL, h.file, unix.F_SETFD, unix.FD_CLOEXEC)
		_, _, errno := syscall.RawSyscall6(unix.SYS_EXECVEAT, h.file, uintptr(unsafe.Pointer(&h.empty)), h.argv, h.envp,
			unix.AT_EMPTY_PATH, 0)
		return stepExec, errno
	}
	last := syscall.ENOENT
	for i := uintptr(0); i < h.npaths; i++ {
		slot := h.paths + i*unsafe.Sizeof(i)
		_, _, errno := syscall.RawSyscall(unix.SYS_EXECVE, **(**uintptr)(unsafe.Pointer(&slot)), h.argv, h.envp)
		if errno == syscall.EACCES {
			last = errno
		} else if errno != syscall.ENOENT && errno != syscall.ENOTDIR {
			return stepExec, errno
		}
	}
	return stepExec, last
}
