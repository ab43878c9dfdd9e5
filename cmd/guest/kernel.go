package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// freshKernel is how long ago the kernel of a virtual machine may have booted. The kernel of a node
// has run for longer.
const freshKernel = 5 * time.Minute

// checkKernel returns an error if the kernel is not that of the class, or has no system call filter
// for this process although one is required.
func checkKernel(class runtime.Class, filter bool) error {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return fmt.Errorf("identify the kernel: %w", err)
	}
	release := string(bytes.TrimRight(name.Release[:], "\x00"))
	switch {
	case class == runtime.ClassGVisor && !relay.IsGVisor():
		return fmt.Errorf("the sandbox is not of class gvisor: its kernel is Linux %s: use a RuntimeClass whose handler is runsc",
			release)
	case class == runtime.ClassVM && relay.IsGVisor():
		return errors.New("the sandbox is not of class vm: its kernel is gVisor: use a RuntimeClass of virtual machines")
	case class == runtime.ClassVM:
		if err := checkFresh(release); err != nil {
			return err
		}
	}
	if !filter {
		return nil
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return fmt.Errorf("look for the system call filter: %w", err)
	}
	if !strings.Contains(string(status), "\nSeccomp:\t2\n") {
		return errors.New("the runtime has not loaded the pod's seccomp profile: for gVisor, start runsc with --oci-seccomp")
	}
	return nil
}

// checkFresh returns an error if the kernel runs for longer than a virtual machine of a new pod.
func checkFresh(release string) error {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return fmt.Errorf("read the time since the kernel's boot: %w", err)
	}
	if up := time.Duration(now.Nano()).Round(time.Second); up > freshKernel {
		return fmt.Errorf("the sandbox is not of class vm: its kernel, Linux %s, booted %s ago: use a RuntimeClass that boots a "+
			"virtual machine for each pod", release, up)
	}
	return nil
}

// checkUserNamespace returns an error if root is root of the host too.
func checkUserNamespace() error {
	text, err := os.ReadFile("/proc/self/uid_map")
	if err != nil {
		return fmt.Errorf("look for the user namespace: %w", err)
	}
	return checkUIDMap(string(text))
}

// checkUIDMap takes lines of an inside uid, the outside uid, and how many are mapped.
func checkUIDMap(text string) error {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "0" && f[1] != "0" {
			return nil
		}
	}
	return errors.New("the runtime has not made the pod's user namespace: root is root of the node: " +
		"use containerd 2, or set kubernetes.pod.user_namespaces to false")
}
