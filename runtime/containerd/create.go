package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/typeurl/v2"
	"github.com/google/uuid"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// stepTime bounds one step of the daemon during a create. The longest takes 50 ms on a quiet
	// machine.
	stepTime = 20 * time.Second
	// labelLimits holds a sandbox's caps for a later Adopt.
	labelLimits = "orchestrator.limits"
	// labelClass holds its class, likewise.
	labelClass = "orchestrator.class"
	// labelTry distinguishes calls of Create with the same id.
	labelTry = "orchestrator.try"
	// bundleRoot is the directory on which shims mount a root, in the bundle that the daemon makes.
	bundleRoot = "rootfs"
)

// Create creates a sandbox. After an error nothing is left; if something could not be removed, the
// error says so, and List finds it.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if spec.UserNamespace {
		if err := ocidriver.CheckUserClass(spec.Class); err != nil {
			return nil, err
		}
	}
	if err := checkImage(spec.Image); err != nil {
		return nil, err
	}
	h, err := d.handlerOf(spec.Class)
	if err != nil {
		return nil, err
	}
	var root []*types.Mount
	return d.Base.Create(ctx, spec, func(ctx context.Context) (err error) {
		if root, err = d.rootMounts(ctx, spec.Image); err != nil {
			return err
		}
		if err := d.record(ctx, spec, h); err != nil {
			return err
		}
		failpoint.Hit("containerd.create.intent")
		return nil
	}, func(ctx context.Context, c *rundir.Dir) (*ocidriver.Process, ocidriver.Stderr, error) {
		failpoint.Hit("containerd.create.cell")
		init, err := d.fill(ctx, spec, root, c)
		return init, nil, err
	})
}

// rootMounts returns how a shim mounts the image's root. If the root was removed since Prepare, it
// is prepared again.
func (d *Driver) rootMounts(ctx context.Context, image runtime.Image) ([]*types.Mount, error) {
	snaps := d.api.SnapshotService(d.snapshotter)
	mounts, err := snaps.Mounts(ctx, viewName(image))
	if errdefs.IsNotFound(err) {
		if err := d.Prepare(ctx, image); err != nil {
			return nil, err
		}
		mounts, err = snaps.Mounts(ctx, viewName(image))
	}
	if err != nil {
		return nil, fmt.Errorf("root of image %q: %w", image.Ref, err)
	}
	for i := range mounts {
		for _, option := range []string{"ro", "nosuid", "nodev"} {
			if !slices.Contains(mounts[i].Options, option) {
				mounts[i].Options = append(mounts[i].Options, option)
			}
		}
	}
	return mount.ToProto(mounts), nil
}

// record writes the container record, which creates nothing else yet. From then on List finds the
// sandbox, and its root is in use.
func (d *Driver) record(ctx context.Context, spec runtime.Spec, h handler) error {
	if spec.UserNamespace {
		h.binary = d.launcher(spec.ID) // made with the namespace
	}
	info, err := h.record(d.runtimeRootOf(spec.ID, spec.Class))
	if err != nil {
		return err
	}
	first := spec
	first.UserNamespace = false // see useUser
	config, err := d.configOf(ctx, first, nil)
	if err != nil {
		return err
	}
	text, err := typeurl.MarshalAny(config)
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	limits, err := json.Marshal(spec.Limits)
	if err != nil {
		return fmt.Errorf("limits: %w", err)
	}
	labels := ocispec.Labels(spec)
	labels[labelLimits], labels[labelTry], labels[labelClass] = string(limits), uuid.NewString(),
		string(spec.Class.OrDefault())
	whole, cancel := uncut(ctx)
	defer cancel()
	_, err = d.api.ContainerService().Create(whole, containers.Container{
		ID: spec.ID, Labels: labels, Image: spec.Image.Ref, Runtime: info, Spec: text,
		Snapshotter: d.snapshotter, SnapshotKey: viewName(spec.Image),
	})
	if err == nil {
		return nil
	}
	return errors.Join(fmt.Errorf("record container: %w", err), d.unrecord(ctx, spec.ID, labels[labelTry]))
}

// unrecord deletes a record whose writing was interrupted, since the daemon may have written it. A
// record of another call stays.
func (d *Driver) unrecord(ctx context.Context, id, try string) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), ocidriver.UndoTime)
	defer cancel()
	got, err := d.api.ContainerService().Get(undo, id)
	if err == nil && got.Labels[labelTry] == try {
		err = d.api.ContainerService().Delete(undo, id)
	}
	if err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("take the record back: %w", err)
	}
	return nil
}

// configOf returns the OCI configuration, with the root where the shim mounts it.
func (d *Driver) configOf(ctx context.Context, spec runtime.Spec, user *userns.Namespace) (*specs.Spec, error) {
	runDir, slotDir, err := rundir.Paths(d.RunDirOptions(spec.ID, spec.Limits))
	if err != nil {
		return nil, err
	}
	at := ocispec.HostPaths{
		Root: "/" + bundleRoot, RunDir: runDir, WorkspaceDir: slotDir, CgroupsPath: ocidriver.CgroupsPath(spec.ID),
	}
	if user != nil {
		at.Root, at.UserNamespace, at.FirstID = d.ids.Root(user.First), user.Path(), user.First
	}
	config, err := ocispec.New(spec, at)
	if err != nil {
		return nil, err
	}
	if user == nil {
		config.Root.Path = bundleRoot
	}
	if d.noSwap {
		config.Linux.Resources.Memory.Swap = nil
	}
	if spec.Class == runtime.ClassGVisor {
		return config, nil
	}
	// The root is already mounted read-only and nodev. With Readonly the runtime would mount it
	// again and lose nodev.
	config.Root.Readonly = false
	daemon, err := peerOf(ctx, d.address)
	if err != nil {
		return nil, err
	}
	if err := ocidriver.FitRlimitsOf(daemon, config.Process.Rlimits); err != nil {
		return nil, err
	}
	return config, nil
}

// fill creates a running container for the run directory.
func (d *Driver) fill(ctx context.Context, spec runtime.Spec, root []*types.Mount,
	c *rundir.Dir) (*ocidriver.Process, error) {
	if spec.Class == runtime.ClassGVisor {
		if err := d.makeGVisorCgroups(spec.ID, spec.Limits); err != nil {
			return nil, err
		}
		failpoint.Hit("containerd.create.gvisor.cgroups")
	}
	if c.User() != nil {
		if err := d.useUser(ctx, spec, root, c.User()); err != nil {
			return nil, err
		}
		root = nil
	}
	whole, cancel := uncut(ctx)
	defer cancel()
	// No streams: the guest has its own, and output without a reader would fill up.
	made, err := d.api.TaskService().Create(whole, &tasks.CreateTaskRequest{ContainerID: spec.ID, Rootfs: root})
	if err != nil || ctx.Err() != nil {
		return nil, fmt.Errorf("make container: %w", said(ctx, err))
	}
	failpoint.Hit("containerd.create.made")
	// The process waits to be started, so it is still the one that was created.
	init, err := holdInit(spec.ID, made.Pid)
	if err != nil {
		return nil, fmt.Errorf("first process: %w", err)
	}
	if err := d.start(ctx, spec, c, init); err != nil {
		init.Close()
		return nil, err
	}
	failpoint.Hit("containerd.create.attached")
	return init, nil
}

// start starts the first process and gives it its cgroups.
func (d *Driver) start(ctx context.Context, spec runtime.Spec, c *rundir.Dir, init *ocidriver.Process) error {
	whole, cancel := uncut(ctx)
	defer cancel()
	_, err := d.api.TaskService().Start(whole, &tasks.StartRequest{ContainerID: spec.ID})
	if err != nil || ctx.Err() != nil {
		return fmt.Errorf("start container: %w", said(ctx, err))
	}
	failpoint.Hit("containerd.create.started")
	err = ocidriver.Attach(ctx, c, spec.ID, spec.Class, init.Pid, spec.Limits)
	if err == nil && !init.Ended() {
		return nil
	}
	if !init.EndsSoon(ctx) {
		return err
	}
	return fmt.Errorf("its first process ended at once%s: %w", d.exitOf(ctx, spec.ID), errdefs.ErrFailedPrecondition)
}

// exitOf describes how the first process ended, if the daemon knows.
func (d *Driver) exitOf(ctx context.Context, id string) string {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	got, err := d.api.TaskService().Wait(soon, &tasks.WaitRequest{ContainerID: id})
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" with status %d", got.ExitStatus)
}

// uncut returns a context for a step that must not be interrupted. A daemon whose request is
// cancelled still carries it out, or half of it, and what it makes then, above all a shim, appears
// after destroy has looked.
func uncut(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), stepTime)
}

// holdInit returns a handle of a sandbox's first process, or os.ErrNotExist if pid does not belong
// to the sandbox, or no longer does.
func holdInit(id string, pid uint32) (*ocidriver.Process, error) {
	if pid <= 1 {
		return nil, os.ErrNotExist
	}
	init, err := ocidriver.Open(int(pid))
	if err != nil {
		return nil, err
	}
	if !ocidriver.InCgroup(init.Pid, ocidriver.CgroupsPath(id)) {
		init.Close()
		return nil, os.ErrNotExist
	}
	return init, nil
}

// said returns a task error with an errdefs class, or the cause if ctx has ended.
func said(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errgrpc.ToNative(err)
}
