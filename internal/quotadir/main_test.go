package quotadir

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const inNamespace = "DISK_TEST_CHILD"

// The tests run in a separate mount namespace. Otherwise a container that is created at the same
// time would clone their mounts and keep their disks in use.
func TestMain(m *testing.M) {
	if os.Getenv(inNamespace) != "" || os.Geteuid() != 0 {
		os.Exit(m.Run())
	}
	runtime.LockOSThread() // Pdeathsig refers to the thread that starts the child.
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	if _, ended := errors.AsType[*exec.ExitError](err); err != nil && !ended {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(cmd.ProcessState.ExitCode())
}
