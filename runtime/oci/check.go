package oci

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
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"orchestrator/internal/cgroup"
)

// unfit is an error that says what this host lacks and how to get it.
func unfit(lack, fix string) error {
	return fmt.Errorf("the oci driver cannot work here: %s; %s: %w", lack, fix, errdefs.ErrFailedPrecondition)
}

func (o Options) validate() error {
	if !filepath.IsAbs(o.StateDir) {
		return fmt.Errorf("state dir %q is not absolute: %w", o.StateDir, errdefs.ErrInvalidArgument)
	}
	if os.Geteuid() != 0 {
		return unfit("it is not run as root", "run it as root, or use the docker driver")
	}
	if !filepath.IsAbs(o.GuestPath) {
		return fmt.Errorf("guest path %q is not absolute: %w", o.GuestPath, errdefs.ErrInvalidArgument)
	}
	info, err := os.Stat(o.GuestPath)
	if err != nil {
		return fmt.Errorf("guest: %w", err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return fmt.Errorf("guest %s is not an executable file: %w", o.GuestPath, errdefs.ErrInvalidArgument)
	}
	p, err := openProcess(os.Getpid())
	if err != nil {
		return unfit("pidfds cannot be used ("+err.Error()+")", "use Linux 5.10 or later")
	}
	p.close()
	return nil
}

// checkCgroups asks for every controller that a cap needs. noSwap: swap is not counted here, and there is none to count.
func checkCgroups() (host cgroup.Host, noSwap bool, err error) {
	host, err = cgroup.Detect()
	if err != nil {
		return host, false, unfit(err.Error(), "mount the cgroup file systems")
	}
	for _, c := range []struct {
		name string
		have bool
	}{{cgroup.Memory, host.Memory}, {cgroup.Pids, host.Pids}, {cgroup.CPU, host.CPU}} {
		if !c.have {
			return host, false, unfit(fmt.Sprintf("the %s controller of cgroup %s is missing or not writable", c.name, host.Mode),
				"boot without cgroup_disable="+c.name+", and mount /sys/fs/cgroup read-write")
		}
	}
	if host.Mode == cgroup.ModeV2 {
		return host, false, nil
	}
	own, err := cgroup.Of(os.Getpid())
	if err != nil {
		return host, false, unfit(err.Error(), "mount the cgroup file systems")
	}
	if exists(filepath.Join(own[cgroup.Memory], "memory.memsw.limit_in_bytes")) {
		return host, false, nil
	}
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return host, false, fmt.Errorf("swap: %w", err)
	}
	if strings.Count(strings.TrimSpace(string(swaps)), "\n") > 0 {
		return host, false, unfit("swap is on, and the kernel does not count it", "boot with swapaccount=1, or swapoff -a")
	}
	return host, true, nil
}

// oldest are the first versions with all we use (1.1 of runc brought the default errno of seccomp filters).
func oldest(name string) (major, minor int) {
	if name == "crun" {
		return 1, 0
	}
	return 1, 1
}

// checkRuntime finds the OCI runtime and says what it is.
func checkRuntime(ctx context.Context, name string, host cgroup.Host) (path, release string, err error) {
	if name == "" {
		name = DefaultRuntime
	}
	kind := filepath.Base(name)
	switch {
	case kind == "runsc":
		return "", "", fmt.Errorf("runtime runsc is not supported yet: gVisor shows no mount that is made after the start and takes no "+
			"delegated cgroup, so workspaces and caps of commands would not hold; use runc: %w", errdefs.ErrNotImplemented)
	case kind != "runc" && kind != "crun":
		return "", "", fmt.Errorf("runtime %q is not known; use runc or crun: %w", name, errdefs.ErrInvalidArgument)
	case kind == "crun" && host.Mode == cgroup.ModeHybrid:
		return "", "", unfit("crun refuses hybrid cgroups", "use runc, or boot with systemd.unified_cgroup_hierarchy=1")
	}
	if path, err = exec.LookPath(name); err != nil {
		return "", "", unfit(name+" is not found", "install it (apt-get install "+kind+")")
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
		return "", "", unfit(fmt.Sprintf("%s --version: %v", path, err), "install a working "+kind)
	}
	return path, firstLine(string(out)), checkVersion(kind, string(out))
}

// checkVersion reads what --version of runc or crun prints.
func checkVersion(kind, text string) error {
	major, minor := oldest(kind)
	version, ok := strings.CutPrefix(firstLine(text), kind+" version ")
	if !ok {
		return unfit(fmt.Sprintf("%s calls itself %q", kind, firstLine(text)), "install "+kind)
	}
	x, y, _ := strings.Cut(version, ".")
	have1, err1 := strconv.Atoi(x)
	y = y[:len(y)-len(strings.TrimLeft(y, "0123456789"))]
	have2, err2 := strconv.Atoi(y)
	if err1 != nil || err2 != nil || have1 < major || have1 == major && have2 < minor {
		return unfit(fmt.Sprintf("%s is %q", kind, version), fmt.Sprintf("install %s %d.%d or later", kind, major, minor))
	}
	if !strings.Contains(strings.ToLower(text), "seccomp") {
		return unfit(kind+" "+version+" is built without seccomp", "install one that is built with it")
	}
	return nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}

// probeOverlay mounts an overlay of two read-only layers once.
func probeOverlay(dir, skeleton string) error {
	at, err := os.MkdirTemp(dir, ".probe-")
	if err != nil {
		return fmt.Errorf("probe overlay: %w", err)
	}
	defer func() { _ = os.Remove(at) }()
	err = mountRoot(at, skeleton, filepath.Join(dir, "runc"))
	switch {
	case errors.Is(err, unix.ENODEV):
		return unfit("the kernel has no overlay file system", "modprobe overlay")
	case errors.Is(err, unix.EPERM):
		return unfit("mounting is not permitted", "run with CAP_SYS_ADMIN on the host, not in a container")
	case err != nil:
		return fmt.Errorf("probe overlay: %w", err)
	}
	return unmountRoot(at)
}

// rlimitNumbers are those of ocispec that the kernel may refuse because a limit of ours is lower.
func rlimitNumbers() map[string]int {
	return map[string]int{
		"RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	}
}

// fitRlimits lowers what is above our own hard limits where these cannot be raised: a tighter wall is as good. Not so open files, which were
// asked for by number.
func fitRlimits(list []specs.POSIXRlimit) error {
	for i, r := range list {
		number, ok := rlimitNumbers()[r.Type]
		if !ok {
			continue
		}
		var own unix.Rlimit
		if err := unix.Getrlimit(number, &own); err != nil {
			return fmt.Errorf("%s: %w", r.Type, err)
		}
		if r.Hard <= own.Max || mayRaise() {
			continue
		}
		if number == unix.RLIMIT_NOFILE {
			return fmt.Errorf("limits.open_files is %d, but this process may give no more than %d: raise its limit (LimitNOFILE= of the unit, ulimit -n) "+
				"or lower limits.open_files: %w", r.Hard, own.Max, errdefs.ErrFailedPrecondition)
		}
		list[i].Hard, list[i].Soft = own.Max, min(r.Soft, own.Max)
	}
	return nil
}

// mayRaise says whether we have CAP_SYS_RESOURCE.
func mayRaise() bool {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData
	err := unix.Capget(&head, &sets[0])
	return err == nil && sets[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}
