package cgroup

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary is also its helper: with this variable set, it plays a role instead of running
// tests.
const roleEnv = "CGROUP_TEST_ROLE"

// lifetime limits every helper, so that a failed test leaves no process for long.
const lifetime = 300 // seconds

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		play(role, os.Args[1:])
		return
	}
	os.Exit(m.Run())
}

// runners starts n processes that fork and end until lifetime has passed. Orphans are reparented to
// this process. Ignoring SIGCHLD reaps them: zombies would fill the pids cap.
func runners(n int) {
	signal.Ignore(syscall.SIGCHLD)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		os.Exit(5)
	}
	end := nowRaw() + lifetime
	for range n {
		run(end)
	}
}

// play reports that it is ready, waits for a line on stdin, so that the caller can first put it
// into a group, and plays the role.
func play(role string, args []string) {
	go func() {
		time.Sleep(lifetime * time.Second)
		os.Exit(9)
	}()
	fmt.Println("here")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		os.Exit(8)
	}
	n := 0
	if len(args) > 0 {
		n, _ = strconv.Atoi(args[0])
	}
	switch role {
	case "sleep":
	case "runners":
		runners(n)
	case "bomb":
		bomb(nowRaw() + lifetime)
	case "hog":
		hog(n)
	case "sockets":
		held, err := sockets(n)
		if err != nil {
			fmt.Println("error:", err)
			os.Exit(3)
		}
		fmt.Println(held)
	case "burn":
		var used unix.Rusage
		for time.Duration(used.Utime.Nano()+used.Stime.Nano()) < time.Duration(n)*time.Millisecond {
			if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
				os.Exit(5)
			}
		}
	case "parent": // leaves a zombie child
		c := exec.Command("/proc/self/exe")
		c.Env = []string{roleEnv + "=exit"}
		if err := c.Start(); err != nil {
			os.Exit(7)
		}
		fmt.Println(c.Process.Pid)
	case "guest":
		if err := guest(in); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
	case "exit":
		return
	}
	fmt.Println("done")
	_, _ = in.ReadString('\n')
	select {}
}

func nowRaw() int64 {
	var ts syscall.Timespec
	syscall.RawSyscall(unix.SYS_CLOCK_GETTIME, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&ts)), 0)
	return ts.Sec
}

func fork() uintptr {
	pid, _, errno := syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return ^uintptr(0)
	}
	return pid
}

// run starts a process that forks and exits, as does its child, and so on until the time is over,
// so that no pid is seen twice. After a bare fork in a Go program, only raw system calls are
// allowed.
func run(end int64) {
	switch fork() {
	case 0:
	case ^uintptr(0):
		os.Exit(4)
	default:
		return
	}
	for {
		switch fork() {
		case 0:
			if nowRaw() > end {
				syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		case ^uintptr(0): // no pid is free: continue in this process
			if nowRaw() > end {
				syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
			}
		default:
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
}

// bomb forks sleepers until ten forks were refused.
func bomb(end int64) {
	for refused := 0; refused < 10; {
		switch fork() {
		case 0:
			for nowRaw() < end {
				ts := syscall.Timespec{Sec: 1}
				syscall.RawSyscall(unix.SYS_NANOSLEEP, uintptr(unsafe.Pointer(&ts)), 0, 0)
			}
			syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		case ^uintptr(0):
			refused++
		}
	}
}

func hog(mib int) {
	b, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		os.Exit(6)
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 1
	}
}

// sockets fills n sockets with datagrams and returns how many bytes they hold.
func sockets(n int) (held int, err error) {
	tx, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	piece := make([]byte, 4000)
	var all []int
	for range n {
		rx, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return 0, err
		}
		all = append(all, rx)
		if err := unix.Bind(rx, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return 0, err
		}
		at, err := unix.Getsockname(rx)
		if err != nil {
			return 0, err
		}
		for range 60 {
			_ = unix.Sendto(tx, piece, 0, at) // refused or dropped: that is the cap
		}
	}
	for _, rx := range all {
		for {
			got, err := unix.Read(rx, piece)
			if err != nil {
				break
			}
			held += got
		}
	}
	return held, nil
}

// guest acts as the guest: PID 1 of its namespace, uid 0 with only CAP_KILL, in a cgroup namespace
// that starts at the sandbox's cgroup, with the delegated cgroups mounted below a directory.
func guest(in *bufio.Reader) error {
	runtime.LockOSThread() // namespaces and capabilities are per thread
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return err
	}
	fmt.Println("unshared")
	dirs, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	var bound map[string]string
	if err := json.Unmarshal([]byte(dirs), &bound); err != nil {
		return err
	}
	base, err := os.MkdirTemp("", "cgroup-guest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(base)
	if err := unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for name, dir := range bound {
		at := filepath.Join(base, name)
		if err := errors.Join(os.Mkdir(at, 0o755), unix.Mount(dir, at, "", unix.MS_BIND, "")); err != nil {
			return err
		}
		defer unix.Unmount(at, 0)
	}
	var was [2]unix.CapUserData
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capget(&hdr, &was[0]); err != nil {
		return err
	}
	few := was
	few[0].Effective, few[1].Effective = 1<<unix.CAP_KILL, 0
	if err := unix.Capset(&hdr, &few[0]); err != nil {
		return err
	}
	err = useTree(base)
	return errors.Join(err, unix.Capset(&hdr, &was[0])) // to unmount again
}

func useTree(base string) error {
	tree, err := OpenTree(base)
	if err != nil {
		return err
	}
	defer tree.Close()
	g, err := tree.Make("exec-1")
	if err != nil {
		return err
	}
	c := exec.Command("/bin/sleep", "300")
	if err := c.Start(); err != nil {
		return err
	}
	if err := g.Add(c.Process.Pid); err != nil {
		return err
	}
	if n, err := g.Alive(); n != 1 || err != nil {
		return fmt.Errorf("Alive = %d, %v; want 1", n, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := g.Kill(ctx); err != nil {
		return err
	}
	if _, err := g.Usage(); err != nil {
		return err
	}
	if err := c.Wait(); err == nil {
		return errors.New("the killed command ended well")
	}
	return g.Remove()
}
