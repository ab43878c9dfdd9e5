package ocidriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
)

// Driver is the name of a driver, for errors that say what a host lacks for it.
type Driver string

// Unfit returns an error of class FailedPrecondition that says what this host lacks and how to get
// it.
func (d Driver) Unfit(lack, fix string) error {
	return fmt.Errorf("the %s driver cannot work here: %s; %s: %w", string(d), lack, fix, errdefs.ErrFailedPrecondition)
}

// CheckCgroups requires every controller that a cap needs. noSwap reports that the kernel does not
// count swap, and that the host has none.
func (d Driver) CheckCgroups() (host cgroup.Host, noSwap bool, err error) {
	host, err = cgroup.Detect()
	if err != nil {
		return host, false, d.Unfit(err.Error(), "mount the cgroup file systems")
	}
	for _, c := range []struct {
		name string
		have bool
	}{{cgroup.Memory, host.Memory}, {cgroup.Pids, host.Pids}, {cgroup.CPU, host.CPU}} {
		if !c.have {
			return host, false, d.Unfit(fmt.Sprintf("the %s controller of cgroup %s is missing or not writable", c.name,
				host.Mode), host.Fix(c.name))
		}
	}
	if host.Mode == cgroup.ModeV2 {
		return host, false, nil
	}
	own, err := cgroup.Of(os.Getpid())
	if err != nil {
		return host, false, d.Unfit(err.Error(), "mount the cgroup file systems")
	}
	if Exists(filepath.Join(own[cgroup.Memory], "memory.memsw.limit_in_bytes")) {
		return host, false, nil
	}
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return host, false, fmt.Errorf("swap: %w", err)
	}
	if strings.Count(strings.TrimSpace(string(swaps)), "\n") > 0 {
		return host, false, d.Unfit("swap is on, and the kernel does not count it", "boot with swapaccount=1, or swapoff -a")
	}
	return host, true, nil
}

// DefaultRuntime is the OCI runtime unless the options name another.
const DefaultRuntime = "runc"

// oldestMinor returns the first minor version, of version 1, with everything that the drivers use.
// Version 1.1 of runc introduced the default errno of seccomp filters.
func oldestMinor(name string) int {
	if name == "crun" {
		return 0
	}
	return 1
}

// CheckRuntime returns the path and the version line of an OCI runtime that works here.
func (d Driver) CheckRuntime(ctx context.Context, name string, host cgroup.Host) (path, release string, err error) {
	if name == "" {
		name = DefaultRuntime
	}
	kind := filepath.Base(name)
	switch {
	case kind == "runsc":
		return "", "", fmt.Errorf("runtime runsc is not supported yet: gVisor shows no mount that is made after the start "+
			"and takes no "+
			"delegated cgroup, so workspaces and caps of commands would not hold; use runc: %w", errdefs.ErrNotImplemented)
	case kind != "runc" && kind != "crun":
		return "", "", fmt.Errorf("runtime %q is not known; use runc or crun: %w", name, errdefs.ErrInvalidArgument)
	case kind == "crun" && host.Mode == cgroup.ModeHybrid:
		return "", "", d.Unfit("crun refuses hybrid cgroups", "use runc, or boot with systemd.unified_cgroup_hierarchy=1")
	}
	if path, err = exec.LookPath(name); err != nil {
		return "", "", d.Unfit(name+" is not found", "install it (apt-get install "+kind+")")
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", "", fmt.Errorf("runtime %s: %w", name, err)
	}
	ask, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ask, path, "--version").CombinedOutput()
	if ctx.Err() != nil {
		return "", "", fmt.Errorf("%s --version: %w", path, context.Cause(ctx))
	}
	if err != nil {
		return "", "", d.Unfit(fmt.Sprintf("%s --version: %v", path, err), "install a working "+kind)
	}
	return path, firstLine(string(out)), d.checkVersion(kind, string(out))
}

// checkVersion parses what --version of runc or crun prints.
func (d Driver) checkVersion(kind, text string) error {
	minor := oldestMinor(kind)
	version, ok := strings.CutPrefix(firstLine(text), kind+" version ")
	if !ok {
		return d.Unfit(fmt.Sprintf("%s calls itself %q", kind, firstLine(text)), "install "+kind)
	}
	x, y, _ := strings.Cut(version, ".")
	have1, err1 := strconv.Atoi(x)
	y = y[:len(y)-len(strings.TrimLeft(y, "0123456789"))]
	have2, err2 := strconv.Atoi(y)
	if err1 != nil || err2 != nil || have1 < 1 || have1 == 1 && have2 < minor {
		return d.Unfit(fmt.Sprintf("%s is %q", kind, version), fmt.Sprintf("install %s 1.%d or later", kind, minor))
	}
	if !strings.Contains(strings.ToLower(text), "seccomp") {
		return d.Unfit(kind+" "+version+" is built without seccomp", "install one that is built with it")
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

// CheckStart requires absolute paths, root, an executable guest, and that the kernel supports
// pidfds.
func (d Driver) CheckStart(stateDir, guest string) error {
	for _, x := range []struct{ name, path string }{{"state dir", stateDir}, {"guest path", guest}} {
		if !filepath.IsAbs(x.path) {
			return fmt.Errorf("%s %q is not absolute: %w", x.name, x.path, errdefs.ErrInvalidArgument)
		}
	}
	if os.Geteuid() != 0 {
		return d.Unfit("it is not run as root", "run it as root, or use the docker driver")
	}
	info, err := os.Stat(guest)
	if err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("guest %s is not an executable file: %w", guest, errdefs.ErrInvalidArgument)
	}
	p, err := Open(os.Getpid())
	if err != nil {
		return d.Unfit("pidfds cannot be used ("+err.Error()+")", "use Linux 5.10 or later")
	}
	p.Close()
	return nil
}
