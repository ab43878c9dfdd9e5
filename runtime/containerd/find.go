package containerd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// List returns what the daemon has recorded, and run directories of this state directory without a
// record, which may have been lost.
func (d *Driver) List(ctx context.Context, owner string) ([]runtime.Found, error) {
	if !runtime.ValidID(owner) {
		return nil, fmt.Errorf("list sandboxes of %q: not an owner: %w", owner, errdefs.ErrInvalidArgument)
	}
	recorded, err := d.api.ContainerService().List(ctx, fmt.Sprintf("labels.%q==%s", ocispec.LabelOwner, owner))
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	running, err := d.running(ctx)
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	var found []runtime.Found
	for _, c := range recorded {
		known[c.ID] = true
		found = append(found, runtime.Found{ID: c.ID, Template: c.Labels[ocispec.LabelTemplate], Build: c.Labels[ocispec.LabelBuild],
			Running: running[c.ID]})
	}
	left, err := rundir.Leftovers(d.RunDirs)
	if err != nil {
		return nil, err
	}
	for _, id := range left {
		if known[id] || !runtime.ValidID(id) {
			continue
		}
		switch _, err := d.api.ContainerService().Get(ctx, id); {
		case errdefs.IsNotFound(err):
			found = append(found, runtime.Found{ID: id})
		case err != nil:
			return nil, fmt.Errorf("list sandboxes: %w", err)
		}
	}
	return found, nil
}

// Owners returns the owners of the sandboxes that have a run directory in this state directory and
// a record at the daemon, sorted. It finds sandboxes whose owner id was lost.
func (d *Driver) Owners(ctx context.Context) ([]string, error) {
	cells, err := rundir.Leftovers(d.RunDirs)
	if err != nil {
		return nil, err
	}
	var owners []string
	for _, id := range cells {
		c, err := d.api.ContainerService().Get(ctx, id)
		switch {
		case errdefs.IsNotFound(err): // it may be any owner's: see List
		case err != nil:
			return nil, fmt.Errorf("list owners: %w", err)
		case runtime.ValidID(c.Labels[ocispec.LabelOwner]):
			owners = append(owners, c.Labels[ocispec.LabelOwner])
		}
	}
	slices.Sort(owners)
	return slices.Compact(owners), nil
}

// running returns the ids whose first process runs according to the daemon, or whose shim does not
// answer.
func (d *Driver) running(ctx context.Context) (map[string]bool, error) {
	got, err := d.api.TaskService().List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", said(ctx, err))
	}
	out := map[string]bool{}
	for _, t := range got.Tasks {
		out[t.ID] = alive(t) || t.Status == task.Status_UNKNOWN
	}
	return out, nil
}

// alive reports whether a task was started and has not ended.
func alive(t *task.Process) bool {
	return t.Status == task.Status_RUNNING || t.Status == task.Status_PAUSED || t.Status == task.Status_PAUSING
}

// find returns a sandbox whose first process runs.
func (d *Driver) find(ctx context.Context, id string) (ocidriver.Recorded, error) {
	record, err := d.api.ContainerService().Get(ctx, id)
	if err != nil {
		return ocidriver.Recorded{}, err
	}
	limits, err := limitsOf(record)
	if err != nil {
		return ocidriver.Recorded{}, err
	}
	init, err := d.initOf(ctx, id)
	return ocidriver.Recorded{
		Class: runtime.Class(record.Labels[labelClass]).OrDefault(), Limits: limits, Init: init, Holder: d.userDir(id),
	}, err
}

// limitsOf returns the caps that a sandbox was created with.
func limitsOf(record containers.Container) (runtime.Limits, error) {
	var l runtime.Limits
	if err := json.Unmarshal([]byte(record.Labels[labelLimits]), &l); err != nil {
		return l, fmt.Errorf("label %s: %w", labelLimits, err)
	}
	return l, l.Validate()
}

// initOf returns a handle of a sandbox's running first process. NotFound: it never ran, or has
// ended.
func (d *Driver) initOf(ctx context.Context, id string) (*ocidriver.Process, error) {
	got, err := d.api.TaskService().Get(ctx, &tasks.GetRequest{ContainerID: id})
	if err != nil {
		return nil, fmt.Errorf("first process: %w", said(ctx, err))
	}
	if got.Process.Status == task.Status_UNKNOWN {
		return nil, fmt.Errorf("its shim does not answer: %w", errdefs.ErrUnavailable)
	}
	if !alive(got.Process) {
		return nil, fmt.Errorf("its first process does not run: %w", errdefs.ErrNotFound)
	}
	init, err := holdInit(id, got.Process.Pid)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("its first process has ended: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("first process: %w", err)
	}
	return init, nil
}
