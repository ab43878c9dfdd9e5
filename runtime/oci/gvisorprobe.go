package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// probeName remembers what was found, in the driver's directory.
const probeName = ".gvisor.json"

// findGVisor finds runsc and the platform on which it can run a sandbox here.
func (d *Driver) findGVisor(ctx context.Context, name string) (*gvisor.Program, error) {
	search := gvisor.Search{Driver: host, Memo: gvisor.Memo{File: filepath.Join(d.dir, probeName)}, Try: d.tryPlatform,
		Log: d.log}
	return search.Find(ctx, name)
}

// tryPlatform runs "guest version" in a sandbox and removes it.
func (d *Driver) tryPlatform(ctx context.Context, g *gvisor.Program, bound time.Duration) (err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("no sandbox within %s", bound))
	defer cancel()
	probe, err := scratch.Make(d.dir, probePrefix)
	if err != nil {
		return err
	}
	dir, id := probe.Path, probeID(probe.Path)
	defer func() {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
		defer cancel()
		err = errors.Join(err, ocidriver.RemoveCgroups(undo, id), probe.Remove())
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
	if err := runGVisor(ctx, g, filepath.Join(dir, runscName), dirs, said, "run", "--bundle="+dir, id); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return errors.New(said.Annotate(err.Error()))
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
			{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace},
			{Type: specs.MountNamespace},
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
