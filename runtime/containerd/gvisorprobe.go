package containerd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/gvisor"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

const (
	// probeName remembers what was found, in the driver's directory.
	probeName = ".gvisor.json"
	// probeDir is the directory of the current trial. It records the trial's sandbox until that is
	// removed.
	probeDir = "probe"
	// saidName is the file in there with what the guest printed.
	saidName = "said"
	// lockName is the file in there that is locked during a trial.
	lockName = "lock"
)

// findGVisor finds runsc and the platform on which containerd can run a sandbox with it.
func (d *Driver) findGVisor(ctx context.Context, name string) (handler, error) {
	search := gvisor.Search{
		Driver: host, Memo: gvisor.Memo{File: filepath.Join(d.dir, probeName)}, Scope: d.info, Try: d.tryPlatform, Log: d.Log,
		Down: func(ctx context.Context, err error) bool { return errdefs.IsUnavailable(err) && !d.answers(ctx) },
	}
	p, err := search.Find(ctx, name)
	if err != nil {
		return handler{}, err
	}
	return d.gvisorHandler(p)
}

// tryPlatform has containerd run "guest version" in a sandbox and removes it, together with what an
// interrupted trial left.
func (d *Driver) tryPlatform(ctx context.Context, g *gvisor.Program, bound time.Duration) (err error) {
	h, err := d.gvisorHandler(g)
	if err != nil {
		return err
	}
	dir := filepath.Join(d.dir, probeDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	lock, err := gvisor.LockTrials(ctx, filepath.Join(dir, lockName), true)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
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

// sweepProbe removes the sandbox of a trial whose process was killed.
func (d *Driver) sweepProbe(ctx context.Context) error {
	dir := filepath.Join(d.dir, probeDir)
	if !ocidriver.Exists(dir) {
		return nil
	}
	lock, err := gvisor.LockTrials(ctx, filepath.Join(dir, lockName), false)
	if err != nil || lock == nil { // nil: a trial is under way
		return err
	}
	defer func() { _ = lock.Close() }()
	return d.endProbe(ctx, dir)
}

// writeProbe records the sandbox and makes its root, which contains only the guest.
func (d *Driver) writeProbe(dir, id string) error {
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "id"), []byte(id), 0o600),
		ocidriver.MakeProbeRoot(filepath.Join(dir, bundleRoot), d.Guest),
	)
}

// runProbe creates a sandbox as Create does, with only the guest in it, and waits for its end.
func (d *Driver) runProbe(ctx context.Context, h handler, id, dir string) error {
	info, err := h.record(d.runscState(id))
	if err != nil {
		return err
	}
	config, err := typeurl.MarshalAny(ocispec.GVisorProbe(filepath.Join(dir, bundleRoot), ocidriver.CgroupsPath(id)))
	if err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	if _, err := d.api.ContainerService().Create(ctx,
		containers.Container{ID: id, Runtime: info, Spec: config}); err != nil {
		return fmt.Errorf("record container: %w", err)
	}
	if err := d.makeGVisorCgroups(id, runtime.Limits{}.WithDefaults()); err != nil {
		return err
	}
	// With no streams at all the guest could not say its version, and would fail.
	out := url.URL{Scheme: "file", Path: filepath.Join(dir, saidName)}
	made, err := d.api.TaskService().Create(ctx,
		&tasks.CreateTaskRequest{ContainerID: id, Stdout: out.String(), Stderr: out.String()})
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
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), ocidriver.UndoTime)
	defer cancel()
	file := filepath.Join(dir, "id")
	if id, err := os.ReadFile(file); err == nil && runtime.ValidID(string(id)) {
		if err := d.Remove(undo, string(id)); err != nil {
			return err
		}
	}
	return errors.Join(os.RemoveAll(filepath.Join(dir, bundleRoot)), os.RemoveAll(filepath.Join(dir, saidName)),
		os.RemoveAll(file))
}
