package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// probeTime bounds one try of a platform, which takes a quarter of a second. The last one is given more time: there is no
	// other. Where the virtual machine is itself in one, kvm is known to hang.
	probeTime     = 4 * time.Second
	lastProbeTime = 30 * time.Second
	// probeName remembers what was found, in the driver's folder.
	probeName = ".gvisor.json"
)

// probed is what is remembered of a try: of which program, in which boot.
type probed struct {
	Program string `json:"program"`
	Boot    string `json:"boot"`
	Found   gvisor `json:"found"`
}

// findGVisor finds runsc and the platform on which it can run a sandbox here. What works is remembered until the program changes or the host is
// booted; what does not is tried again by the next process, as somebody may have mended it.
func (d *Driver) findGVisor(ctx context.Context, name string) (*gvisor, error) {
	if name == "" {
		name = DefaultGVisor
	}
	path, err := exec.LookPath(name)
	if err == nil {
		path, err = filepath.Abs(path)
	}
	if err != nil {
		return nil, unfitClass(name+" is not found", "install gVisor (apt-get install runsc, or https://gvisor.dev/docs/user_guide/install/)")
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("class gvisor: %w", err)
	}
	key := probed{Program: fmt.Sprintf("%s %d %d", path, info.Size(), info.ModTime().UnixNano()), Boot: d.bootID}
	if known, ok := d.remembered(key); ok {
		return known, nil
	}
	g, err := d.tryGVisor(ctx, path)
	if err != nil {
		return nil, err
	}
	key.Found = *g
	if text, err := json.Marshal(key); err == nil {
		file := filepath.Join(d.dir, probeName)
		if err := errors.Join(os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file)); err != nil {
			d.log.Debug("what was found of gVisor is not remembered", "error", err)
		}
	}
	return g, nil
}

func (d *Driver) remembered(key probed) (*gvisor, bool) {
	text, err := os.ReadFile(filepath.Join(d.dir, probeName))
	if err != nil {
		return nil, false
	}
	var had probed
	if json.Unmarshal(text, &had) != nil || had.Program != key.Program || had.Boot != key.Boot || had.Found.Path == "" {
		return nil, false
	}
	return &had.Found, true
}

// unfitClass is unfit for one class only.
func unfitClass(lack, fix string) error { return unfit("class gvisor: "+lack, fix) }

// tryGVisor asks runsc what it is and runs the guest in it, on one platform after the other.
func (d *Driver) tryGVisor(ctx context.Context, path string) (*gvisor, error) {
	ask, cancel := context.WithTimeout(ctx, lastProbeTime)
	defer cancel()
	version, err := exec.CommandContext(ask, path, "--version").CombinedOutput()
	if err != nil {
		return nil, unfitClass(fmt.Sprintf("%s --version: %v", path, err), "install a working runsc")
	}
	text, err := exec.CommandContext(ask, path, "flags").CombinedOutput()
	if err != nil {
		return nil, unfitClass(fmt.Sprintf("%s flags: %v", path, err), "install a working runsc")
	}
	flags, missing := ocispec.GVisorFlags(string(text))
	if missing != "" {
		return nil, unfitClass(fmt.Sprintf("%s has no flag --%s", firstLine(string(version)), missing), "install a newer runsc")
	}
	platforms := ocispec.GVisorPlatforms(string(text))
	var failed []string
	for i, platform := range platforms {
		bound := probeTime
		if i == len(platforms)-1 {
			bound = lastProbeTime
		}
		g := &gvisor{Path: path, Release: firstLine(string(version)), Platform: platform, Flags: flags}
		err := d.tryPlatform(ctx, g, bound)
		if err == nil {
			return g, nil
		}
		d.log.Debug("gVisor does not work on a platform", "platform", platform, "error", err)
		failed = append(failed, platform+": "+err.Error())
	}
	return nil, unfitClass(firstLine(string(version))+" cannot run a sandbox ("+strings.Join(failed, "; ")+")",
		"allow ptrace (kernel.yama.ptrace_scope below 3) or give it /dev/kvm")
}

// tryPlatform runs "guest version" in a sandbox and removes it.
func (d *Driver) tryPlatform(ctx context.Context, g *gvisor, bound time.Duration) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no sandbox within %s", bound))
	defer cancel()
	dir, err := os.MkdirTemp(d.dir, ".probe-")
	if err != nil {
		return err
	}
	id := "probe-" + strings.TrimPrefix(filepath.Base(dir), ".probe-")
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, ocidriver.RemoveCgroups(undo, id), os.RemoveAll(dir))
	}()
	if err := d.probeBundle(dir); err != nil {
		return err
	}
	dirs, err := cgroup.Make(ocidriver.CgroupsPath(id), whole(ocispec.GVisorCaps(runtime.Limits{}.WithDefaults())))
	if err != nil {
		return err
	}
	said, err := newWords()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, said.Close()) }()
	if err := g.run(ctx, filepath.Join(dir, runscName), dirs, said, "run", "--bundle="+dir, id); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errors.New(said.After(err.Error()))
	}
	return nil
}

func (d *Driver) probeBundle(dir string) error {
	root := filepath.Join(dir, overlayName)
	guest, err := os.ReadFile(d.guest)
	if err != nil {
		return err
	}
	config, err := json.Marshal(specs.Spec{
		Version: "1.0.2",
		Root:    &specs.Root{Path: root, Readonly: true},
		Process: &specs.Process{Args: []string{"/guest", "version"}, Env: ocispec.Env(), Cwd: "/", NoNewPrivileges: true},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		}},
	})
	if err != nil {
		return err
	}
	return errors.Join(
		os.Mkdir(root, 0o755),
		os.WriteFile(filepath.Join(root, "guest"), guest, 0o755), //nolint:gosec // a program
		os.WriteFile(filepath.Join(dir, bundleConfig), config, 0o600),
	)
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line)
}
