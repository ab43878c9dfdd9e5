package main

import (
	"os"
	"os/signal"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigIgn is the kernel's SIG_IGN.
const sigIgn = 1

// ignoreSignals makes PID 1 ignore signals. Go installs handlers for nearly all signals, and PID 1
// receives signals with a handler. Excluded are those that the Go runtime needs: for preemption
// (URG), children (CHLD), and its own faults (SEGV, BUS, FPE).
func ignoreSignals() {
	var list []os.Signal
	for sig := syscall.Signal(1); sig <= 64; sig++ {
		switch sig {
		case unix.SIGURG, unix.SIGCHLD, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGKILL, unix.SIGSTOP, 32, 33:
		case unix.SIGILL, unix.SIGTRAP, unix.SIGSTKFLT, unix.SIGSYS:
			// os/signal leaves these to the Go runtime, which would end the process.
			act := [4]uint64{sigIgn}
			syscall.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(sig), uintptr(unsafe.Pointer(&act)), 0, 8, 0, 0)
		default:
			list = append(list, sig)
		}
	}
	signal.Ignore(list...)
}
