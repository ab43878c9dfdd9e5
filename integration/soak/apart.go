//go:build integration

package soak

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// apartVar says that this process is in namespaces of its own already.
const apartVar = "ORCHESTRATOR_SOAK_APART"

// apart runs this program again where it sees only what it starts itself: in
// namespaces of its own for processes, mounts, sockets and System V IPC. So what
// others do on the machine is not counted, and whatever is left ends with it.
// code is that run's; inside, it returns false.
func apart() (code int, outside bool) {
	if os.Getenv(apartVar) != "" {
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, true
		}
		return 0, false
	}
	// The first process there has to reap what daemons leave: bash does.
	flags := []string{"--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc", "--", "bash", "-c", `"$@" & wait $!`, "bash", os.Args[0]}
	cmd := exec.Command("unshare", append(flags, os.Args[1:]...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), apartVar+"=1")
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, exit.ExitCode()), true
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "a soak needs namespaces of its own:", err)
		return 1, true
	}
	return 0, true
}

// loopbackUp is what a new network namespace lacks.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	r.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		return fmt.Errorf("bring up loopback: %w", err)
	}
	return nil
}

// dropForeign leaves out cgroups in which others' processes are, and those above
// them: the trees of cgroups are not apart. The kernel shows the process of
// another namespace as 0.
func dropForeign(groups map[string]string) {
	for dir := range groups {
		procs, _ := os.ReadFile(dir + "/cgroup.procs")
		if !strings.HasPrefix(string(procs), "0\n") && !strings.Contains(string(procs), "\n0\n") {
			continue
		}
		for d := dir; strings.HasPrefix(d, "/sys/fs/cgroup"); d = d[:strings.LastIndexByte(d, '/')] {
			delete(groups, d)
		}
	}
}
