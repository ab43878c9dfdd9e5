package docker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Remove destroys a sandbox by id from any state. It succeeds if nothing is left. Unavailable: the
// engine could not be asked, and nothing on this host was removed.
func (d *Driver) Remove(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return fmt.Errorf("docker: sandbox id %q: %w", id, errdefs.ErrInvalidArgument)
	}
	// A sandbox that this process holds knows more: its process and its mounts.
	if s := d.holder(id); s != nil {
		return s.Destroy(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTime, errSlow)
	defer cancel()
	dead, err := d.endGVisor(ctx, id)
	if err != nil {
		return err
	}
	if err := d.removeContainers(ctx, id, "", dead); err != nil {
		return err
	}
	failpoint.Hit("docker.destroy.deleted")
	if err := d.removeCell(ctx, id); err != nil {
		return err
	}
	failpoint.Hit("docker.destroy.unmounted")
	return d.removeNote(id)
}

// removeContainers removes the container of a sandbox. If the caller does not know it, it is looked
// up by label: an interrupted create may have made one. dead: all of its processes were seen dead.
func (d *Driver) removeContainers(ctx context.Context, id, known string, dead bool) error {
	if known != "" {
		return d.removeContainer(ctx, known, dead)
	}
	got, err := d.api.ContainerList(ctx, client.ContainerListOptions{
		All: true, Filters: client.Filters{}.Add("label", labelID+"="+id),
	})
	if err != nil {
		return d.failed(ctx, "look for sandbox "+id, err)
	}
	for _, c := range got.Items {
		if c.Labels[labelOwner] == "" || !named(c.Names, id) {
			continue
		}
		if err := d.removeContainer(ctx, c.ID, dead); err != nil {
			return err
		}
	}
	return nil
}

// removeContainer kills and removes a container with its anonymous volumes, and returns when the
// engine no longer knows it.
func (d *Driver) removeContainer(ctx context.Context, id string, dead bool) error {
	if !dead || !d.seenDead(ctx, id) {
		if err := d.killContainer(ctx, id); err != nil {
			return err
		}
	}
	if err := removeHanded(id); err != nil {
		return err
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		_, err := d.api.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		switch {
		case err == nil, errdefs.IsNotFound(err):
			return nil
		case client.IsErrConnectionFailed(err) || ctx.Err() != nil:
			return d.failed(ctx, fmt.Sprintf("remove container %.12s", id), err)
		}
		// A conflict is a removal under way; an internal error is often a mount that is busy for a
		// moment.
		d.log.Debug("container is not gone yet", "container", id, "error", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return errors.Join(d.failed(ctx, fmt.Sprintf("remove container %.12s", id), err), err)
		}
	}
}

// killContainer kills a container and waits until the engine has noticed its end. Otherwise a
// removal can overtake the news of the end, and the engine (20.10) lists forever a container that
// it does not know. Only an engine out of reach is an error: a forced removal handles the rest,
// including a slow engine.
func (d *Driver) killContainer(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, engineKillTime, errSlow)
	defer cancel()
	_, err := d.api.ContainerKill(ctx, id, client.ContainerKillOptions{Signal: "KILL"})
	if client.IsErrConnectionFailed(err) && ctx.Err() == nil {
		return d.failed(ctx, fmt.Sprintf("kill container %.12s", id), err)
	}
	if errdefs.IsNotFound(err) {
		return nil
	}
	d.awaitEnd(ctx, id)
	return nil
}

// seenDead waits until the engine has noticed the end of a container whose processes are dead, and
// reports whether it has. It does not send a kill: the shim (containerd 1.6) would hold the
// container while it runs the kill, so that it could not record the end, and take a second for each
// orphan. gVisor leaves as many orphans as there were processes inside.
func (d *Driver) seenDead(ctx context.Context, id string) bool {
	ctx, cancel := context.WithTimeoutCause(ctx, seenTime, errSlow)
	defer cancel()
	return d.awaitEnd(ctx, id)
}

// awaitEnd waits until the engine says that a container does not run, or does not exist.
func (d *Driver) awaitEnd(ctx context.Context, id string) bool {
	w := d.api.ContainerWait(ctx, id, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case <-w.Result:
		return true
	case err := <-w.Error:
		if errdefs.IsNotFound(err) {
			return true
		}
		d.log.Debug("end of the container not seen by the engine", "container", id, "error", err)
		return false
	}
}

// noted reports whether a sandbox is this driver's: without a note it may be another's, with a
// running container.
func (d *Driver) noted(id string) bool {
	_, err := os.Lstat(filepath.Join(d.notesDir(), id))
	return !errors.Is(err, fs.ErrNotExist)
}

// endGVisor kills what runs in a sandbox of class gvisor, the only kind with our cgroups. It
// reports whether there was anything.
func (d *Driver) endGVisor(ctx context.Context, id string) (bool, error) {
	if !d.noted(id) {
		return false, nil
	}
	dirs, err := ocidriver.CgroupsOf(id)
	if err == nil && len(dirs) > 0 {
		err = ocidriver.RemoveCgroups(ctx, id)
	}
	if err != nil {
		return false, fmt.Errorf("docker: sandbox %s: %w", id, err)
	}
	return len(dirs) > 0, nil
}

// removeCell removes the run directory of a sandbox whose container is gone.
func (d *Driver) removeCell(ctx context.Context, id string) error {
	if !d.noted(id) {
		return nil
	}
	if err := ocidriver.RemoveCgroups(ctx, id); err != nil {
		return fmt.Errorf("docker: sandbox %s: %w", id, err)
	}
	if err := rundir.Remove(ctx, d.cellOptions(id, 0)); err != nil {
		return fmt.Errorf("docker: sandbox %s: %w", id, err)
	}
	return nil
}
