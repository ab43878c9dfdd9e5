//go:build unix

package sandbox

import (
	"os"
	"os/signal"
	"syscall"
)

// notifySize sends to changed when the size of the terminal changes.
func notifySize(changed chan<- os.Signal) { signal.Notify(changed, syscall.SIGWINCH) }

// quit ends the process as SIGQUIT does by default.
func quit() { _ = syscall.Kill(os.Getpid(), syscall.SIGQUIT) }
