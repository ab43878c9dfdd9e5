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
	if err := d.checkClass(spec.Class); err != nil {
		return nil, err
	}
	if spec.UserNamespace {
		if err := ocidriver.CheckUserClass(spec.Class); err != nil {
			return nil, err
		}
	}
	rec := record{
		ID: spec.ID, Owner: spec.Owner, Template: spec.Template, Build: spec.Build, Class: spec.Class,
		Created: time.Now().UTC(), Limits: spec.Limits, BootID: d.bootID,
	}
	return d.Base.Create(ctx, spec, func(context.Context) error { return d.begin(rec) },
		func(ctx context.Context, c *rundir.Dir) (*ocidriver.Process, ocidriver.Stderr, error) {
			return d.fill(ctx, spec, rec, c)
		})
}

// begin makes the directory with the record, from which List and Remove know the sandbox.
func (d *Driver) begin(rec record) error {
	if err := os.Mkdir(d.bundle(rec.ID), 0o700); err != nil {
		if errors.Is(err, os.ErrExist) {
			return errdefs.ErrAlreadyExists
		}
		return err
	}
	if err := d.write(rec); err != nil {
		return errors.Join(err, os.RemoveAll(d.bundle(rec.ID)))
	}
	failpoint.Hit("oci.create.intent")
	return nil
}

// fill starts a container for the run directory.
func (d *Driver) fill(ctx context.Context, spec runtime.Spec, rec record,
	c *rundir.Dir) (*ocidriver.Process, ocidriver.Stderr, error) {
	failpoint.Hit("oci.create.cell")
	if err := d.makeBundle(spec, c); err != nil {
		return nil, nil, err
	}
	failpoint.Hit("oci.create.overlay")
	said, err := newWords()
	if err != nil {
		return nil, nil, err
	}
	start := d.start
	if spec.Class == runtime.ClassGVisor {
		start = d.startGVisor
	}
	init, err := start(ctx, spec, said)
	if err != nil {
		return nil, nil, errors.Join(err, said.Close())
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
		return nil, nil, errors.Join(err, said.Close())
	}
	failpoint.Hit("oci.create.attached")
	return init, said, nil
}

// endedAtOnce returns the error of a failed start: that the first process has ended, with its
// output, or otherwise err.
func endedAtOnce(ctx context.Context, init *ocidriver.Process, said *words, err error) error {
	if !init.EndsSoon(ctx) {
		return err
	}
	return fmt.Errorf("%s: %w", said.Annotate("its first process ended at once"), errdefs.ErrFailedPrecondition)
}

// makeBundle writes the configuration and mounts the root.
func (d *Driver) makeBundle(spec runtime.Spec, c *rundir.Dir) error {
	dir := d.bundle(spec.ID)
	at := ocispec.HostPaths{
		Root: filepath.Join(dir, overlayName), RunDir: c.RunDir(), WorkspaceDir: c.WorkspaceDir(),
		CgroupsPath: ocidriver.CgroupsPath(spec.ID),
	}
	user := c.User()
	if user != nil {
		at.Root, at.UserNamespace, at.FirstID = d.ids.Root(user.First), user.Path(), user.First
	} else if err := os.Mkdir(at.Root, 0o700); err != nil {
		return fmt.Errorf("root: %w", err)
	}
	config, err := ocispec.New(spec, at)
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
	if user != nil {
		config.Process.Rlimits = nil // see start
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
	return mountRoot(at.Root, d.skeleton, spec.Image.Root, user)
}

// start runs the OCI runtime and returns a handle of the first process.
func (d *Driver) start(ctx context.Context, spec runtime.Spec, said *words) (*ocidriver.Process, error) {
	id := spec.ID
	pidFile := filepath.Join(d.bundle(id), pidName)
	var io runc.IO = said
	if spec.UserNamespace {
		// The runtime may not set them once the first process is another user's, unless it has
		// CAP_SYS_RESOURCE. So it has them itself.
		limits := ocispec.Rlimits(spec.Limits)
		if err := ocidriver.FitRlimits(limits); err != nil {
			return nil, err
		}
		io = &limitedIO{words: said, limits: limits}
	}
	_, err := d.runtime.Run(ctx, id, d.bundle(id), &runc.CreateOpts{IO: io, PidFile: pidFile, Detach: true})
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
