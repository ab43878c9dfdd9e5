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
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// undoTime bounds the removal of what a failed call made.
	undoTime = 20 * time.Second
	// stepTime bounds what the daemon does in one step of a create. The longest takes 50 ms on a quiet machine.
	stepTime = 20 * time.Second
	// labelLimits are a sandbox's caps, for who adopts it.
	labelLimits = "orchestrator.limits"
	// labelClass is its class, for the same.
	labelClass = "orchestrator.class"
	// labelTry tells one call of Create from another with the same id.
	labelTry = "orchestrator.try"
	// bundleRoot is where shims mount a root, in the folder of the container that the daemon makes.
	bundleRoot = "rootfs"
)

// Create makes a sandbox. When it fails nothing is left; what could not be removed is told, and found by List.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := checkImage(spec.Image); err != nil {
		return nil, err
	}
	h, err := d.handlerOf(spec.Class)
	if err != nil {
		return nil, err
	}
	unlock, err := d.busy.Lock(ctx, spec.ID)
	if err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	defer unlock()
	root, err := d.rootMounts(ctx, spec.Image)
	if err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	if err := d.record(ctx, spec, h); err != nil {
		return nil, fmt.Errorf("create sandbox %s: %w", spec.ID, err)
	}
	failpoint.Hit("containerd.create.intent")
	s, err := d.create(ctx, spec, root)
	if err == nil {
		return s, nil
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	return nil, errors.Join(fmt.Errorf("create sandbox %s: %w", spec.ID, err), d.removal.Destroy(undo, spec.ID))
}

// rootMounts is how a shim mounts the image's root. An image whose root was given up meanwhile is prepared again.
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

// record writes the container down, which makes nothing else yet. From then on List finds it, and its root is in use.
func (d *Driver) record(ctx context.Context, spec runtime.Spec, h handler) error {
	info, err := h.record(d.runtimeRootOf(spec.ID, spec.Class))
	if err != nil {
		return err
	}
	config, err := d.configOf(ctx, spec)
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
	labels[labelLimits], labels[labelTry], labels[labelClass] = string(limits), uuid.NewString(), string(spec.Class.OrDefault())
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

// unrecord takes back a record whose writing was cut short: the daemon may have carried it out all the same. That of another try stays.
func (d *Driver) unrecord(ctx context.Context, id, try string) error {
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
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

// configOf is the OCI configuration, with the root where the shim mounts it.
func (d *Driver) configOf(ctx context.Context, spec runtime.Spec) (*specs.Spec, error) {
	runDir, slotDir, err := rundir.Paths(d.cellOptions(spec.ID, spec.Limits))
	if err != nil {
		return nil, err
	}
	config, err := ocispec.New(spec, ocispec.HostPaths{
		Root: "/" + bundleRoot, RunDir: runDir, WorkspaceDir: slotDir, CgroupsPath: ocidriver.CgroupsPath(spec.ID),
	})
	if err != nil {
		return nil, err
	}
	config.Root.Path = bundleRoot
	if d.noSwap {
		config.Linux.Resources.Memory.Swap = nil
	}
	if spec.Class == runtime.ClassGVisor {
		return config, nil
	}
	// The root is mounted read-only and nodev. Asked for read-only, the runtime would mount it once more and lose the nodev.
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

// create makes one part after the other. What it made when it fails is removed by destroy, which looks at what is there.
func (d *Driver) create(ctx context.Context, spec runtime.Spec, root []*types.Mount) (*ocidriver.Sandbox, error) {
	c, err := rundir.Make(ctx, d.cellOptions(spec.ID, spec.Limits))
	if err != nil {
		return nil, err
	}
	failpoint.Hit("containerd.create.cell")
	s, err := d.fill(ctx, spec, root, c)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return s, nil
}

// fill puts a running container around the cell.
func (d *Driver) fill(ctx context.Context, spec runtime.Spec, root []*types.Mount, c *rundir.Dir) (*ocidriver.Sandbox, error) {
	if spec.Class == runtime.ClassGVisor {
		if err := d.makeGVisorCgroups(spec.ID, spec.Limits); err != nil {
			return nil, err
		}
		failpoint.Hit("containerd.create.gvisor.cgroups")
	}
	whole, cancel := uncut(ctx)
	defer cancel()
	// No streams: the guest has a way of its own, and what nobody reads must not fill.
	made, err := d.api.TaskService().Create(whole, &tasks.CreateTaskRequest{ContainerID: spec.ID, Rootfs: root})
	if err != nil || ctx.Err() != nil {
		return nil, fmt.Errorf("make container: %w", said(ctx, err))
	}
	failpoint.Hit("containerd.create.made")
	// It waits to be started, so it is still the process that was made.
	init, err := holdInit(spec.ID, made.Pid)
	if err != nil {
		return nil, fmt.Errorf("first process: %w", err)
	}
	if err := d.start(ctx, spec, c, init); err != nil {
		init.Close()
		return nil, err
	}
	failpoint.Hit("containerd.create.attached")
	return d.live.Hold(spec.ID, spec.Class, c, init, nil), nil
}

// start lets the first process run and shows it its cgroups.
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
	// What fails because the process is about to be gone may fail a moment before it is.
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if init.Wait(soon) != nil {
		return err
	}
	return fmt.Errorf("its first process ended at once%s: %w", d.exitOf(ctx, spec.ID), errdefs.ErrFailedPrecondition)
}

// exitOf tells how the first process ended, if the daemon knows.
func (d *Driver) exitOf(ctx context.Context, id string) string {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	got, err := d.api.TaskService().Wait(soon, &tasks.WaitRequest{ContainerID: id})
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" with status %d", got.ExitStatus)
}

// uncut is the context of a step that must not be cut short: a daemon that is called off carries it out all the same, or half of it,
// and what it then makes, a shim above all, comes after destroy has looked.
func uncut(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), stepTime)
}

// holdInit takes hold of a sandbox's first process; os.ErrNotExist if pid is not, or no more, one of its.
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

// said is a task error in our classes; where ctx ended, why.
func said(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return errgrpc.ToNative(err)
}
