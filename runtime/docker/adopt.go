package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Adopt takes over a running sandbox. NotFound: the engine has no such sandbox, or its first
// process has ended; Remove still clears what is left of it.
func (d *Driver) Adopt(ctx context.Context, id string) (runtime.Sandbox, error) {
	if !runtime.ValidID(id) {
		return nil, fmt.Errorf("docker: sandbox id %q: %w", id, errdefs.ErrInvalidArgument)
	}
	askCtx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	got, err := d.api.ContainerInspect(askCtx, containerName(id), client.ContainerInspectOptions{})
	if err != nil {
		return nil, d.failed(askCtx, "look for sandbox "+id, err)
	}
	c := got.Container
	switch {
	case c.Config == nil || c.HostConfig == nil || c.State == nil || c.Config.Labels[labelID] != id:
		return nil, fmt.Errorf("docker: container %s is not a sandbox of ours: %w", containerName(id), errdefs.ErrNotFound)
	case !c.State.Running:
		return nil, fmt.Errorf("docker: sandbox %s has ended: %w", id, errdefs.ErrNotFound)
	}
	s := newSandbox(d, id, c.Config.Labels[labelMode], runtime.Class(c.Config.Labels[labelClass]))
	s.container, s.begun, s.started = c.ID, true, true
	if err := d.hold(s); err != nil {
		return nil, err
	}
	if s.mode == ModeStdio {
		s.bridge = newBridge(s.ctx, d, c.ID)
		s.watch()
	} else {
		err = s.adoptLocal(ctx, c)
	}
	<-s.turn
	if err != nil {
		return nil, errors.Join(err, s.Release())
	}
	return s, nil
}

func (s *Sandbox) adoptLocal(ctx context.Context, c container.InspectResponse) error {
	if s.d.mode != ModeLocal {
		return refused("sandbox %s was made on a local engine, and this one is used over its API only", s.id)
	}
	scratch, err := strconv.ParseInt(c.Config.Labels[labelScratch], 10, 64)
	if err != nil {
		return refused("sandbox %s: label %s: %v", s.id, labelScratch, err)
	}
	if s.proc, err = openProcess(c.State.Pid, c.ID, s.inside()); err != nil {
		return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	s.watch()
	s.cell, err = rundir.Adopt(ctx, s.d.cellOptions(s.id, scratch))
	switch {
	case errors.Is(err, rundir.ErrIncomplete), errors.Is(err, fs.ErrNotExist):
		return refused("sandbox %s runs, but cannot be reached any more: remove it (%v)", s.id, err)
	case err != nil:
		return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	limits := runtime.Limits{MemoryBytes: c.HostConfig.Memory, CPUs: float64(c.HostConfig.NanoCPUs) / 1e9}
	if c.HostConfig.PidsLimit != nil {
		limits.Pids = *c.HostConfig.PidsLimit
	}
	if err := ocidriver.Attach(ctx, s.cell, s.id, s.class, c.State.Pid, limits); err != nil {
		return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	return nil
}
