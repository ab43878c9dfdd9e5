//go:build integration

package soak

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// apartVar is set if this process already runs in separate namespaces.
const apartVar = "ORCHESTRATOR_SOAK_APART"

// apart runs this program again in new namespaces for processes, mounts, sockets and System V IPC,
// so that it counts only what it starts itself, and whatever is left ends with it. It returns the
// exit code of that run and true. In the inner run it returns false.
func apart() (code int, outside bool) {
	if os.Getenv(apartVar) != "" {
		if err := loopbackUp(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1, true
		}
		return 0, false
	}
	// The first process has to reap what daemons leave, which bash does.
	flags := []string{
		"--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child", "--mount-proc", "--", "bash", "-c", `"$@" & wait $!`,
		"bash", os.Args[0],
	}
	cmd := exec.Command("unshare", slices.Concat(flags, os.Args[1:])...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), apartVar+"=1")
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(1, exit.ExitCode()), true
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "the soak needs separate namespaces:", err)
		return 1, true
	}
	return 0, true
}

// loopbackUp brings up loopback in a new network namespace.
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

// dropForeign removes cgroups with processes of other namespaces, and their parents, because the
// cgroup trees are shared. The kernel shows a process of another namespace as 0.
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
