package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/google/uuid"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// probeTime bounds one try of a platform, which takes half a second. The last one is given more time: there is no
	// other. Where the virtual machine is itself in one, kvm is known to hang.
	probeTime     = 4 * time.Second
	lastProbeTime = 30 * time.Second
	// probeName remembers what was found, in the driver's folder.
	probeName = ".gvisor.json"
	// probeDir is the folder in there that a try has, one at a time. Its sandbox is remembered in it until it is removed.
	probeDir = "probe"
	// saidName is the file in there with what the guest said.
	saidName = "said"
)

// probed is what is remembered of a try: of which program, with which daemon, in which boot.
type probed struct {
	Program string `json:"program"`
	Daemon  string `json:"daemon"`
	Boot    string `json:"boot"`
	Found   gvisor `json:"found"`
}

// search is the search for a runsc that works, at the first use of the class. That the daemon was away is not remembered.
type search struct {
	mu    sync.Mutex
	over  bool
	found handler
	err   error
}

func (s *search) once(find func() (handler, error)) (handler, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.found, s.err = find()
		s.over = !errdefs.IsUnavailable(s.err)
	}
	return s.found, s.err
}

// findGVisor finds runsc and the platform on which containerd can run a sandbox with it. What works is remembered until the programs change or the
// host is booted; what does not is tried again by the next process, as somebody may have mended it.
func (d *Driver) findGVisor(ctx context.Context, name string) (handler, error) {
	if name == "" {
		name = DefaultGVisor
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return handler{}, unfitClass(name+" is not found", "install gVisor (apt-get install runsc, or https://gvisor.dev/docs/user_guide/install/)")
	}
	info, err := os.Stat(path)
	if err != nil {
		return handler{}, fmt.Errorf("class gvisor: %w", err)
	}
	boot, err := ocidriver.BootID()
	if err != nil {
		return handler{}, err
	}
	key := probed{Program: fmt.Sprintf("%s %d %d", path, info.Size(), info.ModTime().UnixNano()), Daemon: d.info, Boot: boot}
	if known, ok := d.remembered(key); ok {
		return d.gvisorHandler(known)
	}
	g, err := d.tryGVisor(ctx, path)
	if err != nil {
		return handler{}, err
	}
	key.Found = *g
	if text, err := json.Marshal(key); err == nil {
		file := filepath.Join(d.dir, probeName)
		if err := errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file)); err != nil {
			d.log.Debug("what was found of gVisor is not remembered", "error", err)
		}
	}
	return d.gvisorHandler(g)
}

func (d *Driver) remembered(key probed) (*gvisor, bool) {
	text, err := os.ReadFile(filepath.Join(d.dir, probeName))
	if err != nil {
		return nil, false
	}
	var had probed
	if json.Unmarshal(text, &had) != nil || had.Program != key.Program || had.Daemon != key.Daemon || had.Boot != key.Boot || had.Found.Path == "" {
		return nil, false
	}
	return &had.Found, true
}

// unfitClass is unfit for one class only.
func unfitClass(lack, fix string) error { return host.Unfit("class gvisor: "+lack, fix) }

// tryGVisor asks runsc what it is and has containerd run the guest in it, on one platform after the other.
func (d *Driver) tryGVisor(ctx context.Context, path string) (*gvisor, error) {
	ask, cancel := context.WithTimeout(ctx, lastProbeTime)
	defer cancel()
	version, err := exec.CommandContext(ask, path, "--version").CombinedOutput()
	if err != nil {
		return nil, unfitClass(fmt.Sprintf("%s --version: %v", path, err), "install a working runsc")
	}
	release, _, _ := strings.Cut(strings.TrimSpace(string(version)), "\n")
	text, err := exec.CommandContext(ask, path, "flags").CombinedOutput()
	if err != nil {
		return nil, unfitClass(fmt.Sprintf("%s flags: %v", path, err), "install a working runsc")
	}
	flags, missing := ocispec.GVisorFlags(string(text))
	if missing != "" {
		return nil, unfitClass(fmt.Sprintf("%s has no flag --%s", release, missing), "install a newer runsc")
	}
	platforms := ocispec.GVisorPlatforms(string(text))
	var failed []string
	for i, platform := range platforms {
		bound := probeTime
		if i == len(platforms)-1 {
			bound = lastProbeTime
		}
		g := &gvisor{Path: path, Release: release, Platform: platform, Flags: flags}
		err := d.tryPlatform(ctx, g, bound)
		if err == nil {
			return g, nil
		}
		if errdefs.IsUnavailable(err) && !d.answers(ctx) {
			return nil, fmt.Errorf("class gvisor: %w", err)
		}
		d.log.Debug("gVisor does not work on a platform", "platform", platform, "error", err)
		failed = append(failed, platform+": "+err.Error())
	}
	return nil, unfitClass(release+" cannot run a sandbox ("+strings.Join(failed, "; ")+")",
		"allow ptrace (kernel.yama.ptrace_scope below 3) or give it /dev/kvm")
}

// tryPlatform has containerd run "guest version" in a sandbox and removes it, and what a try that was cut short left.
func (d *Driver) tryPlatform(ctx context.Context, g *gvisor, bound time.Duration) (err error) {
	h, err := d.gvisorHandler(g)
	if err != nil {
		return err
	}
	dir := filepath.Join(d.dir, probeDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("wait for another try: %w", err)
	}
	if err := d.endProbe(ctx, dir); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.endProbe(ctx, dir)) }()
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no sandbox within %s", bound))
	defer cancel()
	id := "probe-" + uuid.NewString()
	if err := d.writeProbe(dir, id); err != nil {
		return err
	}
	return d.runProbe(ctx, h, id, dir)
}

// writeProbe remembers the sandbox and makes its root, which holds the guest alone.
func (d *Driver) writeProbe(dir, id string) error {
	guest, err := os.ReadFile(d.guest)
	if err != nil {
		return err
	}
	root := filepath.Join(dir, bundleRoot)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "id"), []byte(id), 0o600),
		os.Mkdir(root, 0o755), //nolint:gosec // in a folder of root's
		os.WriteFile(filepath.Join(root, "guest"), guest, 0o755), //nolint:gosec // a program
	)
}

// runProbe makes a sandbox as Create does, with the guest alone in it, and waits for its end.
func (d *Driver) runProbe(ctx context.Context, h handler, id, dir string) error {
	info, err := h.record(d.runscState(id))
	if err != nil {
		return err
	}
	config, err := typeurl.MarshalAny(&specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: filepath.Join(dir, bundleRoot), Readonly: true},
		Process: &specs.Process{Args: []string{"/guest", "version"}, Env: ocispec.Env(), Cwd: "/", NoNewPrivileges: true},
		Linux: &specs.Linux{CgroupsPath: ocidriver.CgroupsPath(id), Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	})
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if _, err := d.api.ContainerService().Create(ctx, containers.Container{ID: id, Runtime: info, Spec: config}); err != nil {
		return fmt.Errorf("record container: %w", err)
	}
	if err := d.makeGVisorCgroups(id, runtime.Limits{}.WithDefaults()); err != nil {
		return err
	}
	// With no streams at all the guest could not say its version, and would fail.
	out := url.URL{Scheme: "file", Path: filepath.Join(dir, saidName)}
	made, err := d.api.TaskService().Create(ctx, &tasks.CreateTaskRequest{ContainerID: id, Stdout: out.String(), Stderr: out.String()})
	if err != nil {
		return fmt.Errorf("make container: %w", said(ctx, err))
	}
	if !ocidriver.InCgroup(int(made.Pid), ocidriver.CgroupsPath(id)) {
		return fmt.Errorf("process %d is not in the cgroup of the sandbox", made.Pid)
	}
	if _, err := d.api.TaskService().Start(ctx, &tasks.StartRequest{ContainerID: id}); err != nil {
		return fmt.Errorf("start container: %w", said(ctx, err))
	}
	got, err := d.api.TaskService().Wait(ctx, &tasks.WaitRequest{ContainerID: id})
	if err != nil {
		return fmt.Errorf("wait for its end: %w", said(ctx, err))
	}
	if got.ExitStatus != 0 {
		return fmt.Errorf("the guest ended with status %d", got.ExitStatus)
	}
	return nil
}

// endProbe removes the sandbox of a try, if there is one.
func (d *Driver) endProbe(ctx context.Context, dir string) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	file := filepath.Join(dir, "id")
	if id, err := os.ReadFile(file); err == nil && runtime.ValidID(string(id)) {
		if err := d.Remove(undo, string(id)); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(filepath.Join(dir, bundleRoot)), os.RemoveAll(filepath.Join(dir, saidName)), os.RemoveAll(file))
}
