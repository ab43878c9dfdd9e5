package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestbin"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Results of a check.
const (
	checkOK   = "ok"
	checkWarn = "warn"
	checkFail = "fail"
)

// check is one line of doctor's output.
type check struct {
	Name   string `json:"name"`
	Status string `json:"status"`
	Found  string `json:"found"`
	Fix    string `json:"fix,omitempty"`
}

// NewDoctorCommand returns "orchestrator doctor".
func NewDoctorCommand(a *cli.App) *cobra.Command {
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Check what this host can enforce",
		Long: `Report what this host can enforce, and how to fix what it cannot.

All runtimes are tried in a temporary directory. The first run on a host can take
several seconds for gVisor's platforms; the outcome is kept in the account's cache
directory until runsc changes or the host boots. The exit code is 1 if something
failed that sandboxes need.`,
		Example: "  orchestrator doctor\n  orchestrator doctor -o json",
		Args:    cli.ExactArgs(),
		RunE:    func(cmd *cobra.Command, _ []string) error { return runDoctor(cmd.Context(), a) },
	}
	c.Flags().BoolVar(&a.Flags.NoTrunc, "no-trunc", false, "print one line for each check, whatever the terminal's width")
	return c
}

func runDoctor(ctx context.Context, a *cli.App) error {
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	host := []check{
		checkUser(),
		checkKernel(),
		checkCgroups(),
		checkCgroupKill(),
		checkSwap(),
		checkSeccomp(),
		checkOverlay(),
		checkCores("/proc/sys/kernel/core_pattern"),
		checkFiles("/proc/sys/fs/file-max"),
	}
	// These start programs, ask daemons and try mounts, so they run at the same time.
	var runtimes []check
	service := make([]check, 5)
	var work sync.WaitGroup
	work.Go(func() { runtimes = checkRuntimes(ctx, a, c) })
	work.Go(func() { service[0] = checkSpace(c.StateDir) })
	work.Go(func() { service[1] = checkQuota(ctx, c) })
	work.Go(func() { service[2] = checkRetained(ctx, c.StateDir) })
	work.Go(func() { service[3] = checkServer(ctx, a, c) })
	work.Go(func() { service[4] = checkImage(ctx, a, c) })
	work.Wait()
	checks := slices.Concat(host, runtimes, service)
	if err := printChecks(a, checks); err != nil {
		return err
	}
	if slices.ContainsFunc(checks, failed) {
		return cli.ErrChecks
	}
	return nil
}

func failed(k check) bool { return k.Status == checkFail }

func checkUser() check {
	uid := os.Geteuid()
	if uid != 0 {
		return check{
			"user",
			checkWarn,
			fmt.Sprintf("uid %d", uid),
			"run as root: the embedded runtime and workspaces need it",
		}
	}
	return check{"user", checkOK, "root", ""}
}

func checkKernel() check {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return check{"kernel", checkWarn, err.Error(), ""}
	}
	release := unix.ByteSliceToString(u.Release[:])
	// If the call exists, it fails because of its arguments.
	if err := unix.MountSetattr(-1, "", 0, &unix.MountAttr{}); errors.Is(err, unix.ENOSYS) {
		return check{
			"kernel",
			checkFail,
			release + ", without mount_setattr",
			"use Linux 5.12 or later: workspaces are bound with it",
		}
	}
	return check{"kernel", checkOK, release, ""}
}

func checkCgroups() check {
	h, err := cgroup.Detect()
	if err != nil {
		return check{"cgroup", checkFail, err.Error(), "mount the cgroup file systems"}
	}
	var missing []string
	for _, c := range []struct {
		name string
		have bool
	}{{"memory", h.Memory}, {"pids", h.Pids}, {"cpu", h.CPU}} {
		if !c.have {
			missing = append(missing, c.name)
		}
	}
	if len(missing) > 0 {
		return check{
			"cgroup",
			checkWarn,
			fmt.Sprintf("%s, without %s", h.Mode, strings.Join(missing, ", ")),
			h.Fix(missing[0]),
		}
	}
	return check{"cgroup", checkOK, fmt.Sprintf("%s with memory, pids, cpu", h.Mode), ""}
}

func checkCgroupKill() check {
	if h, err := cgroup.Detect(); err != nil || !h.Kill {
		return check{
			"cgroup.kill",
			checkWarn,
			"missing",
			"use Linux 5.14 or later with a cgroup2 tree: kills are quicker with it, and as complete without",
		}
	}
	return check{"cgroup.kill", checkOK, "there", ""}
}

func checkSwap() check {
	text, err := os.ReadFile("/proc/swaps")
	if err != nil || strings.Count(strings.TrimSpace(string(text)), "\n") == 0 {
		return check{"swap", checkOK, "off", ""}
	}
	if h, err := cgroup.Detect(); err == nil && h.Mode == cgroup.ModeV2 {
		return check{"swap", checkOK, "on, and counted", ""}
	}
	if own, err := cgroup.Of(os.Getpid()); err == nil {
		if _, err := os.Stat(filepath.Join(own[cgroup.Memory], "memory.memsw.limit_in_bytes")); err == nil {
			return check{"swap", checkOK, "on, and counted", ""}
		}
	}
	return check{"swap", checkFail, "on, and not counted", "swapoff -a, or boot with swapaccount=1"}
}

func checkSeccomp() check {
	text, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	if err != nil || !strings.Contains(string(text), "errno") {
		return check{"seccomp", checkFail, "no filters", "use a kernel with CONFIG_SECCOMP_FILTER"}
	}
	return check{"seccomp", checkOK, "filters", ""}
}

// checkCores checks whether the kernel starts a program for a crashed process. That program runs
// outside of the container, whatever the limit on core files.
func checkCores(file string) check {
	text, err := os.ReadFile(file)
	if err != nil {
		return check{"core dumps", checkWarn, err.Error(), ""}
	}
	program, piped := strings.CutPrefix(strings.TrimSpace(string(text)), "|")
	if !piped {
		return check{"core dumps", checkOK, "to files", ""}
	}
	return check{
		"core dumps",
		checkWarn,
		"a crash in a sandbox starts " + program + " as root on this host",
		"sysctl kernel.core_pattern=core",
	}
}

// manyFiles exceeds what the sandboxes of one host can open. systemd sets no limit.
const manyFiles = 100_000_000

// checkFiles checks how many files can be open on the host. The limit is shared: three sandboxes
// can open two million.
func checkFiles(file string) check {
	text, err := os.ReadFile(file)
	if err != nil {
		return check{"open files", checkWarn, err.Error(), ""}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return check{"open files", checkWarn, err.Error(), ""}
	}
	if n < manyFiles {
		return check{
			"open files",
			checkWarn,
			fmt.Sprintf("%d for the whole host: sandboxes can use them up", n),
			"sysctl fs.file-max=9223372036854775807",
		}
	}
	return check{"open files", checkOK, "as many as memory holds", ""}
}

func checkOverlay() check {
	text, err := os.ReadFile("/proc/filesystems")
	if err != nil || !strings.Contains(string(text), "\toverlay\n") {
		return check{"overlay", checkWarn, "missing", "modprobe overlay: the embedded runtime needs it"}
	}
	return check{"overlay", checkOK, "there", ""}
}

// checkRuntimes opens all drivers in a temporary directory. One that works is enough.
func checkRuntimes(ctx context.Context, a *cli.App, c config.Config) []check {
	parent := c.StateDir
	if _, err := os.Stat(parent); err != nil {
		parent = "" // the directory of temporary files
	}
	if parent != "" {
		_ = sweepDoctors(ctx, c, standalone.Logger(a.Stderr, c.Log)) // else the next doctor or server does it
	}
	tried, err := scratch.Make(cmp.Or(parent, os.TempDir()), doctorPrefix)
	if err != nil {
		return []check{{"runtime", checkFail, err.Error(), "run as root, or name a --state-dir of your own"}}
	}
	dir := tried.Path
	defer func() { _ = tried.Release() }()                                       // the next start removes what is left
	defer func() { _ = standalone.RemoveRun(context.WithoutCancel(ctx), dir) }() // it is empty
	defer keepProbes(dir)
	recallProbes(dir)
	guest, _, err := guestbin.Write(filepath.Join(dir, "guest"))
	if err != nil {
		return []check{{"guest", checkFail, err.Error(), "build with `make build`"}}
	}
	c.Log.Level = "error"
	d := standalone.Drivers{Config: c, StateDir: dir, Guest: guest, Log: standalone.Logger(a.Stderr, c.Log)}
	try := func(name string) check {
		got, what, err := d.Open(ctx, name)
		if err != nil {
			return check{"runtime " + name, checkWarn, cli.WithoutClass(err.Error()), ""}
		}
		defer got.Close()
		return check{"runtime " + name, checkOK, what + "; " + classesOf(got) + userNamespacesOf(ctx, got), ""}
	}
	var checks [3]check
	var work sync.WaitGroup
	work.Go(func() { checks[0] = try(standalone.RuntimeOCI) })
	work.Go(func() { checks[1] = checkDocker(ctx, c, try) })
	work.Go(func() { checks[2] = checkContainerd(c, try) })
	work.Wait()
	all := checks[:]
	if c.Runtime == standalone.RuntimeKubernetes {
		all = append(all, try(standalone.RuntimeKubernetes))
	}
	failNeeded(c.Runtime, all)
	return all
}

// checkDocker tries the Docker Engine, if one answers.
func checkDocker(ctx context.Context, c config.Config, try func(string) check) check {
	host := standalone.DockerHost(c.Docker.Host)
	if err := standalone.DockerAnswers(ctx, host); err == nil {
		return try(standalone.RuntimeDocker)
	}
	return check{
		"runtime docker",
		checkWarn,
		"nobody answers on " + host,
		"start a Docker Engine, or leave it: the embedded runtime needs none",
	}
}

// checkContainerd tries containerd, if its socket exists.
func checkContainerd(c config.Config, try func(string) check) check {
	if _, err := os.Stat(c.Containerd.Address); err == nil {
		return try(standalone.RuntimeContainerd)
	}
	return check{
		"runtime containerd",
		checkWarn,
		"nobody listens on " + c.Containerd.Address,
		"start containerd, or leave it: the embedded runtime needs none",
	}
}

// failNeeded makes the check of the configured runtime a failure if it has not passed. For auto,
// the embedded runtime or Docker must work; they are the first two checks.
func failNeeded(configured string, checks []check) {
	fit := func(k check) bool { return k.Status == checkOK }
	if configured == standalone.RuntimeAuto {
		if !fit(checks[0]) && !fit(checks[1]) {
			checks[0].Status = checkFail
		}
		return
	}
	for i, k := range checks {
		if k.Name == "runtime "+configured && !fit(k) {
			checks[i].Status = checkFail
		}
	}
}

// classesOf lists the isolation classes of a driver on this host, and why gvisor is missing if it
// could be offered.
func classesOf(d runtime.Driver) string {
	classes := d.Classes()
	names := make([]string, len(classes))
	for i, c := range classes {
		names[i] = string(c)
	}
	text := "classes " + strings.Join(names, ", ")
	why, ok := d.(interface{ Why(runtime.Class) error })
	if !ok || slices.Contains(classes, runtime.ClassGVisor) {
		return text
	}
	if err := why.Why(runtime.ClassGVisor); err != nil {
		text += "; no gvisor: " + cli.OneLine(cli.WithoutClass(err.Error()))
	}
	return text
}

// userNamespacesOf says whether a driver can give sandboxes user namespaces, and why not if it
// could elsewhere.
func userNamespacesOf(ctx context.Context, d runtime.Driver) string {
	u, ok := d.(runtime.UserNamespacer)
	if !ok {
		return ""
	}
	if err := u.CheckUserNamespace(ctx, runtime.ClassContainer); err != nil {
		return "; no user namespaces: " + cli.OneLine(cli.WithoutClass(err.Error()))
	}
	return "; user namespaces"
}

func checkSpace(dir string) check {
	at := dir
	for at != "/" {
		if _, err := os.Stat(at); err == nil {
			break
		}
		at = filepath.Dir(at)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(at, &fs); err != nil {
		return check{"state directory", checkFail, fmt.Sprintf("%s: %v", dir, err), "name another one with --state-dir"}
	}
	free := int64(fs.Bavail) * fs.Bsize
	found := fmt.Sprintf("%s: %s and %d inodes free", dir, cli.Size(free), fs.Ffree)
	switch {
	case unix.Access(at, unix.W_OK) != nil:
		return check{
			"state directory",
			checkFail,
			found + ", not writable",
			"run as root, or name another one with --state-dir",
		}
	case free < 2<<30 || fs.Files > 0 && fs.Ffree < 100_000:
		return check{"state directory", checkWarn, found, "free some: an image takes about 1 GiB and 50,000 inodes"}
	}
	return check{"state directory", checkOK, found, ""}
}

func checkServer(ctx context.Context, a *cli.App, c config.Config) check {
	cl, err := a.FindServer(ctx, c)
	closed, isClosed := errors.AsType[*client.AccessError](err)
	switch {
	case isClosed:
		fact, remedy := cli.ExplainAccess(closed)
		return check{"server", checkWarn, fact, remedy}
	case err != nil:
		return check{"server", checkWarn, cli.Describe(err), "look at its log"}
	case cl == nil:
		return check{"server", checkOK, "none on " + a.Address(c), ""}
	}
	v, err := cl.Version(ctx)
	if err != nil {
		return check{"server", checkWarn, cli.Describe(err), "look at its log"}
	}
	return check{"server", checkOK, fmt.Sprintf("%s on %s, runtime %s", v.Version, cl.Address(), v.Runtime), ""}
}

// checkImage checks that the images of all templates are imported.
func checkImage(ctx context.Context, a *cli.App, c config.Config) check {
	if c.Runtime == standalone.RuntimeKubernetes {
		return check{"image", checkOK, "pulled by the nodes", ""}
	}
	c, err := c.WithTemplatesDir(a.ConfigFile())
	if err != nil {
		return check{"image", checkFail, cli.Describe(err), "orchestrator template check FILE"}
	}
	list, err := listImages(ctx, a, c)
	if _, closed := errors.AsType[*client.AccessError](err); closed {
		return check{"image", checkWarn, "unknown: only the server knows its images", "get access to the server first"}
	}
	if err != nil {
		return check{"image", checkWarn, cli.Describe(err), ""}
	}
	var missing []string
	for _, name := range standalone.SortedKeys(c.Templates) {
		if !hasImage(list, c.Templates[name].Image) {
			missing = append(missing, c.Templates[name].Image)
		}
	}
	if len(missing) > 0 {
		return check{
			"image",
			checkFail,
			strings.Join(missing, ", ") + " not imported",
			"orchestrator image import \"$(make -s image)\"",
		}
	}
	return check{"image", checkOK, c.Templates[config.DefaultTemplate].Image, ""}
}

// listImages lists the images of the server that answers, or of the state directory.
func listImages(ctx context.Context, a *cli.App, c config.Config) (list []v1.Image, err error) {
	cl, err := a.FindServer(ctx, c)
	if err != nil {
		return nil, err
	}
	if cl != nil {
		return cl.Images.List(ctx)
	}
	if _, err := os.Stat(c.StateDir); err != nil {
		return nil, nil //nolint:nilerr // Without a state directory there are no images; doctor creates none.
	}
	err = standalone.WithImages(ctx, a, c, standalone.ImageNeeds{}, func(cl *client.Client) (err error) {
		list, err = cl.Images.List(ctx)
		return err
	})
	return list, err
}

// hasImage reports whether the list has the image that ref names: a name, a name with a digest, or
// the first digits of an id.
func hasImage(list []v1.Image, ref string) bool {
	name, err := images.ParseName(ref)
	if err != nil {
		name = ref
	}
	_, digest, _ := strings.Cut(ref, "@")
	return slices.ContainsFunc(list, func(i v1.Image) bool {
		return i.Ref == name || slices.Contains(i.Digests, ref) || i.ID == cmp.Or(digest, ref) ||
			len(ref) >= shortestID && strings.HasPrefix(i.ID, "sha256:"+ref)
	})
}

// shortestID is the number of digits that an image can be named by.
const shortestID = 12
