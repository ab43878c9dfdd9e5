package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const podUsage = usageError(
	"usage: guest install [--isolate] [--dir PATH=MODE:UID:GID]... | " +
		"guest pod [--class CLASS] [--seccomp] [--user-namespace] [--rlimit NAME=N]... [--env NAME=VALUE]... [--writable PATH]... -- COMMAND...",
)

// oomScoreAdj makes the kernel kill a sandbox before other processes of its host.
const oomScoreAdj = 500

// hostsFile is the sandbox's /etc/hosts in wire.RunDir. The one that the cluster provides is
// writable and names the pod's address.
const (
	hostsFile = "hosts"
	hosts     = "127.0.0.1 localhost sandbox\n::1 localhost\n"
)

// directory is a mounted directory with the owner and the mode that it has to get.
type directory struct {
	path     string
	mode     uint32
	uid, gid int
}

// runInstall first deletes the pod's network interfaces, if asked to. It copies this program and
// the guest's other programs into wire.RunDir and sets the owners and modes of directories. An init
// container runs it: a pod's volumes all start as root's, with mode 0777.
func runInstall(args []string) error {
	var dirs []directory
	f := flag.NewFlagSet("install", flag.ContinueOnError)
	strip := f.Bool("isolate", false, "delete the network interfaces")
	f.SetOutput(io.Discard)
	f.Func("dir", "PATH=MODE:UID:GID of a volume", func(text string) error {
		d, err := parseDirectory(text)
		dirs = append(dirs, d)
		return err
	})
	if err := f.Parse(args); err != nil || f.NArg() > 0 {
		return podUsage
	}
	if *strip {
		if err := isolate(); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the guest: %w", err)
	}
	if err := os.Chmod(wire.RunDir, 0o700); err != nil {
		return fmt.Errorf("close the guest's directory: %w", err)
	}
	for _, name := range wire.Programs() {
		from := wire.ProgramPath(self, name)
		if _, err := os.Stat(from); os.IsNotExist(err) {
			continue
		}
		if err := install(from, wire.ProgramPath(wire.GuestPath, name)); err != nil {
			return err
		}
	}
	if err := install(self, wire.GuestPath); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(wire.RunDir, hostsFile), []byte(hosts), 0o644); err != nil {
		return fmt.Errorf("install the hosts file: %w", err)
	}
	for _, d := range dirs {
		if err := unix.Chown(d.path, d.uid, d.gid); err != nil {
			return fmt.Errorf("set the owner of %s: %w", d.path, err)
		}
		if err := unix.Chmod(d.path, d.mode); err != nil {
			return fmt.Errorf("set the mode of %s: %w", d.path, err)
		}
	}
	return nil
}

func parseDirectory(text string) (directory, error) {
	var d directory
	at, rest, _ := strings.Cut(text, "=")
	if _, err := fmt.Sscanf(rest, "%o:%d:%d", &d.mode, &d.uid, &d.gid); err != nil {
		return d, fmt.Errorf("invalid directory %q: use PATH=MODE:UID:GID", text)
	}
	d.path = at
	return d, nil
}

// install copies a program to a new file.
func install(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("install %s: %w", path.Base(to), err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o555)
	if err != nil {
		return fmt.Errorf("install %s: %w", path.Base(to), err)
	}
	_, err = io.Copy(out, in)
	if closeErr := out.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("install %s: %w", path.Base(to), err)
	}
	return nil
}

// podOptions of `guest pod`.
type podOptions struct {
	rlimits  map[int]uint64
	class    runtime.Class
	seccomp  bool
	userns   bool
	env      []string
	writable []string
	command  []string
}

// runPod replaces this process by the command, as the first process of a container that a cluster
// made. Before, it checks from inside what a cluster may not enforce, and sets what a pod cannot
// ask for: resource limits, and an environment without the image's variables.
func runPod(args []string) error {
	o, err := parsePod(args)
	if err != nil {
		return err
	}
	if err := checkKernel(o.class, o.seccomp); err != nil {
		return err
	}
	if err := checkIsolated(); err != nil {
		return err
	}
	if o.userns {
		if err := checkUserNamespace(); err != nil {
			return err
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	if err := checkMounts(string(mounts), o.writable); err != nil {
		return err
	}
	if err := raiseOOMScore(); err != nil {
		return err
	}
	for which, n := range o.rlimits {
		if err := lowerLimit(which, n); err != nil {
			return err
		}
	}
	syscall.Umask(0o022)
	err = syscall.Exec(o.command[0], o.command, o.env)
	return fmt.Errorf("start %s: %w", o.command[0], err)
}

func parsePod(args []string) (podOptions, error) {
	o := podOptions{rlimits: map[int]uint64{}}
	f := flag.NewFlagSet("pod", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("rlimit", "NAME=N, a limit of every process", func(text string) error {
		name, number, _ := strings.Cut(text, "=")
		which, ok := rlimitNumbers()[name]
		n, err := strconv.ParseUint(number, 10, 64)
		if !ok || err != nil {
			return fmt.Errorf("invalid limit %q: use NAME=N", text)
		}
		o.rlimits[which] = n
		return nil
	})
	f.Func("env", "NAME=VALUE", func(text string) error { o.env = append(o.env, text); return nil })
	f.Func(
		"writable",
		"PATH of a mount that may be writable",
		func(text string) error { o.writable = append(o.writable, text); return nil },
	)
	f.Func("class", "isolation CLASS that the kernel must show", func(text string) (err error) {
		o.class, err = runtime.ParseClass(text)
		return err
	})
	f.BoolVar(&o.userns, "user-namespace", false, "require a user namespace")
	f.BoolVar(&o.seccomp, "seccomp", false, "require a system call filter")
	if err := f.Parse(args); err != nil {
		return o, usageError(err.Error())
	}
	if o.command = f.Args(); len(o.command) == 0 || !filepath.IsAbs(o.command[0]) {
		return o, podUsage
	}
	return o, nil
}

func rlimitNumbers() map[string]int {
	return map[string]int{
		"RLIMIT_CORE": unix.RLIMIT_CORE, "RLIMIT_MEMLOCK": unix.RLIMIT_MEMLOCK, "RLIMIT_MSGQUEUE": unix.RLIMIT_MSGQUEUE,
		"RLIMIT_NICE": unix.RLIMIT_NICE, "RLIMIT_NPROC": unix.RLIMIT_NPROC,
		"RLIMIT_NOFILE": unix.RLIMIT_NOFILE, "RLIMIT_RTPRIO": unix.RLIMIT_RTPRIO, "RLIMIT_SIGPENDING": unix.RLIMIT_SIGPENDING,
	}
}

// raiseOOMScore keeps a higher score: lowering it needs a capability that a pod does not have.
func raiseOOMScore() error {
	const file = "/proc/self/oom_score_adj"
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("read oom_score_adj: %w", err)
	}
	if now, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && now >= oomScoreAdj {
		return nil
	}
	if err := os.WriteFile(file, []byte(strconv.Itoa(oomScoreAdj)), 0o644); err != nil {
		return fmt.Errorf("set oom_score_adj: %w", err)
	}
	return nil
}

// lowerLimit sets a limit to n, or keeps a lower one: raising it needs a capability that a pod does
// not have.
func lowerLimit(which int, n uint64) error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(which, &now); err != nil {
		return fmt.Errorf("read resource limit %d: %w", which, err)
	}
	n = min(n, now.Max)
	if err := syscall.Setrlimit(which, &syscall.Rlimit{Cur: n, Max: n}); err != nil {
		return fmt.Errorf("set resource limit %d: %w", which, err)
	}
	return nil
}

// checkMounts returns an error for a file system that commands could write to and that the host did
// not ask for, such as the VOLUME of an image.
func checkMounts(mountinfo string, allowed []string) error {
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 7 {
			continue
		}
		at, options := fields[4], strings.Split(fields[5], ",")
		if slices.Contains(options, "ro") || slices.Contains(allowed, at) || belowAny(at, "/proc", "/sys", "/dev") {
			continue
		}
		return fmt.Errorf(
			"%s is a writable mount that the template does not declare: list it under tmpfs, or use an image without that VOLUME",
			at,
		)
	}
	return nil
}

func belowAny(at string, tops ...string) bool {
	return slices.ContainsFunc(tops, func(top string) bool { return at == top || strings.HasPrefix(at, top+"/") })
}
