package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	runc "github.com/containerd/go-runc"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// undoTime bounds the removal of what a failed Create made.
const undoTime = 20 * time.Second

// Create creates a sandbox. After an error nothing is left; if something could not be removed, the
// error says so, and List finds it.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := checkImage(spec.Image); err != nil {
		return nil, err
	}
	if err := d.checkClass(spec); err != nil {
		return nil, err
	}
	unlock, err := d.busy.Lock(ctx, spec.ID)
	if err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	defer unlock()
	if err := os.Mkdir(d.bundle(spec.ID), 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			err = errdefs.ErrAlreadyExists
		}
		return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	s, err := d.create(ctx, spec)
	if err == nil {
		return s, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return nil, errors.Join(fmt.Errorf("create sandbox %s: %w", spec.ID, err), d.removal.Destroy(undo, spec.ID))
}

// create makes one part after the other. If it fails, destroy removes what it finds.
func (d *Driver) create(ctx context.Context, spec runtime.Spec) (*ocidriver.Sandbox, error) {
	rec := record{
		ID: spec.ID, Owner: spec.Owner, Template: spec.Template, Build: spec.Build, Class: spec.Class,
		Created: time.Now().UTC(), Limits: spec.Limits, BootID: d.bootID,
	}
	if err := d.write(rec); err != nil {
		return nil, err
	}
	failpoint.Hit("oci.create.intent")
	c, err := rundir.Make(ctx, d.cellOptions(spec.ID, spec.Limits))
	if err != nil {
		return nil, err
	}
	s, err := d.fill(ctx, spec, rec, c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

// fill creates a container for the run directory.
func (d *Driver) fill(ctx context.Context, spec runtime.Spec, rec record, c *rundir.Dir) (*ocidriver.Sandbox, error) {
	failpoint.Hit("oci.create.cell")
	if err := d.makeBundle(spec, c); err != nil {
		return nil, err
	}
	failpoint.Hit("oci.create.overlay")
	said, err := newWords()
	if err != nil {
		return nil, err
	}
	start := d.start
	if spec.Class == runtime.ClassGVisor {
		start = d.startGVisor
	}
	init, err := start(ctx, spec, said)
	if err != nil {
		return nil, errors.Join(err, said.Close())
	}
	failpoint.Hit("oci.create.started")
	rec.Pid, rec.Started = init.Pid, init.Started
	err = d.write(rec)
	if err == nil {
		err = ocidriver.Attach(ctx, c, spec.ID, spec.Class, init.Pid, spec.Limits)
	}
	if err != nil || init.Ended() {
		err = endedAtOnce(ctx, init, said, err)
		init.Close()
		return nil, errors.Join(err, said.Close())
	}
	failpoint.Hit("oci.create.attached")
	return d.live.Hold(spec.ID, spec.Class, c, init, said), nil
}

// endedAtOnce returns the error of a failed start: that the first process has ended, with its
// output, or otherwise err. An operation can fail a moment before the process that causes the
// failure is gone.
func endedAtOnce(ctx context.Context, init *ocidriver.Process, said *words, err error) error {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if init.Wait(ctx) != nil {
		return err
	}
	return fmt.Errorf("%s: %w", said.Annotate("its first process ended at once"), errdefs.ErrFailedPrecondition)
}

// makeBundle writes the configuration and mounts the root.
func (d *Driver) makeBundle(spec runtime.Spec, c *rundir.Dir) error {
	dir := d.bundle(spec.ID)
	root := filepath.Join(dir, overlayName)
	config, err := ocispec.New(spec, ocispec.HostPaths{
		Root: root, RunDir: c.RunDir(), WorkspaceDir: c.WorkspaceDir(), CgroupsPath: ocidriver.CgroupsPath(spec.ID),
	})
	if err != nil {
		return err
	}
	if spec.Class != runtime.ClassGVisor {
		// The overlay is already read-only and nodev. With Readonly runc would mount it again and
		// lose nodev.
		config.Root.Readonly = false
		if err := ocidriver.FitRlimits(config.Process.Rlimits); err != nil {
			return err
		}
	}
	if d.noSwap {
		config.Linux.Resources.Memory.Swap = nil
	}
	text, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, bundleConfig), text, 0o600); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	return mountRoot(root, d.skeleton, spec.Image.Root)
}

// start runs the OCI runtime and returns a handle of the first process.
func (d *Driver) start(ctx context.Context, spec runtime.Spec, said *words) (*ocidriver.Process, error) {
	id := spec.ID
	pidFile := filepath.Join(d.bundle(id), pidName)
	_, err := d.runtime.Run(ctx, id, d.bundle(id), &runc.CreateOpts{IO: said, PidFile: pidFile, Detach: true})
	if ctx.Err() != nil {
		return nil, fmt.Errorf("start: %w", context.Cause(ctx))
	}
	if err != nil {
		return nil, fmt.Errorf("start: %s", said.Annotate(err.Error()))
	}
	pid, err := runc.ReadPidFile(pidFile)
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	return d.take(ctx, id, pid, said)
}

// take returns a handle of the process that a runtime reported.
func (d *Driver) take(ctx context.Context, id string, pid int, said *words) (*ocidriver.Process, error) {
	init, err := ocidriver.Open(pid)
	if errors.Is(err, os.ErrNotExist) {
		return nil, endedAtOnce(ctx, nil, said, nil)
	}
	if err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	// Between the runtime's report and our handle the process may have died and another may have
	// got its pid.
	if !ocidriver.InCgroup(pid, ocidriver.CgroupsPath(id)) {
		init.Close()
		return nil, endedAtOnce(ctx, nil, said, nil)
	}
	return init, nil
}
