package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// The guest reaps every child of its process and scans all processes. So as root, the tests run as
// PID 1 of separate pid and mount namespaces, with cgroups that the outer process created and
// delegated.
const (
	inChild   = "SERVER_TEST_CHILD"
	cgroupEnv = "SERVER_TEST_CGROUPS"
	// workspaceEnv is a directory for commands. It is not below TMPDIR, which commands may not be
	// able to enter.
	workspaceEnv = "SERVER_TEST_WORKSPACE"
	bound        = 60 * time.Second
	testPids     = 200
	testMem      = 256 << 20
)

func TestMain(m *testing.M) {
	helper()
	fuzzing := slices.ContainsFunc(os.Args, func(a string) bool {
		return strings.HasPrefix(a, "-test.fuzz") && !strings.HasPrefix(a, "-test.fuzzcachedir")
	})
	if os.Getuid() != 0 || fuzzing { // a fuzzer needs its inherited descriptors
		os.Exit(m.Run())
	}
	if os.Getenv(inChild) != "" {
		if err := settle(); err != nil {
			fmt.Fprintln(os.Stderr, "set up the test's namespaces:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	code, err := outer()
	if err != nil {
		fmt.Fprintln(os.Stderr, "run the tests in namespaces:", err)
		os.Exit(1)
	}
	os.Exit(code)
}

// outer runs the tests in a child and removes its cgroups afterwards.
func outer() (int, error) {
	dir, err := os.MkdirTemp("/tmp", "server-test-")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o777); err != nil {
		return 1, err
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), inChild+"=1", workspaceEnv+"="+dir)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return 1, err
	}
	if err := cmd.Start(); err != nil {
		return 1, err
	}
	dirs, remove := delegate(cmd.Process.Pid)
	defer remove()
	text, err := json.Marshal(dirs)
	if err != nil {
		return 1, err
	}
	if _, err := fmt.Fprintf(in, "%s\n", text); err != nil {
		return 1, err
	}
	if err := cmd.Wait(); err != nil {
		return 1, nil // it said why itself
	}
	return 0, nil
}

// delegate moves the child to new cgroups and delegates from there. If that fails, the tests use
// group ids only.
func delegate(pid int) (map[string]string, func()) {
	remove := func() {}
	host, err := cgroup.Detect()
	if err != nil || host.Mode == cgroup.ModeV2 || !host.Pids || !host.Memory {
		fmt.Println("no cgroups to test with:", err)
		return nil, remove
	}
	paths, err := cgroup.Of(os.Getpid())
	if err != nil {
		fmt.Println("no cgroups to test with:", err)
		return nil, remove
	}
	var made []string
	for _, p := range paths {
		dir := filepath.Join(p, "orchestrator-test-"+strconv.Itoa(pid))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		made = append(made, dir)
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			fmt.Println("no cgroups to test with:", err)
		}
	}
	d, err := cgroup.Delegate(pid, cgroup.Share{MemoryBytes: testMem, Pids: testPids})
	if err != nil {
		fmt.Println("no cgroups to test with:", err)
		d = &cgroup.Delegated{}
	}
	return d.Dirs, func() {
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		defer cancel()
		if err := d.Remove(ctx); err != nil {
			fmt.Println("remove the test's cgroups:", err)
		}
		for _, dir := range made {
			for range 200 {
				if err := os.Remove(dir); err == nil || errors.Is(err, os.ErrNotExist) {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	}
}

// upLoopback enables the loopback interface, as in a sandbox.
func upLoopback() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo)
}

// settle prepares the namespaces: /proc of this pid namespace, and the delegated cgroups in a
// directory as the host would mount them.
func settle() error {
	// If the outer process ends, the go command does not notify this one.
	var line []byte
	for b := make([]byte, 1); ; {
		if n, err := os.Stdin.Read(b); n != 1 || err != nil {
			return fmt.Errorf("outer process is gone: %w", err)
		}
		if b[0] == '\n' {
			break
		}
		line = append(line, b[0])
	}
	var dirs map[string]string
	if err := json.Unmarshal(line, &dirs); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return err
	}
	if err := upLoopback(); err != nil {
		return err
	}
	if len(dirs) == 0 {
		return nil
	}
	const at = "/mnt"
	if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=700"); err != nil {
		return err
	}
	for name, dir := range dirs {
		target := filepath.Join(at, name)
		if err := os.Mkdir(target, 0o700); err != nil {
			return err
		}
		if err := unix.Mount(dir, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return os.Setenv(cgroupEnv, at)
}
