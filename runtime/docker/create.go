package docker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/ocidriver"
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// createTime bounds a Create whose caller set no deadline; abandonTime bounds the undoing of one.
const (
	createTime  = 2 * time.Minute
	abandonTime = 30 * time.Second
)

// Create creates a sandbox and returns when its first process runs. If it fails, it removes what it
// made; List finds what could not be removed.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := spec.RefuseUserNamespace(); err != nil {
		return nil, err
	}
	if err := d.checkClass(spec.Class); err != nil {
		return nil, err
	}
	img, err := d.prepared(ctx, spec.Image)
	if err != nil {
		return nil, err
	}
	s, err := d.raise(ctx, spec, img)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// raise creates a sandbox from an image that the engine knows.
func (d *Driver) raise(ctx context.Context, spec runtime.Spec, img image) (*Sandbox, error) {
	s := newSandbox(d, spec.ID, d.mode, spec.Class)
	if err := d.hold(s); err != nil {
		return nil, err
	}
	if err := d.writeNote(spec); err != nil {
		d.drop(s)
		return nil, err
	}
	err := s.create(ctx, spec, img)
	<-s.turn
	if err != nil {
		undo := s.abandon(ctx)
		if errdefs.IsUnavailable(undo) {
			// The engine went away in between: what it did to the container says nothing about the
			// Spec.
			return nil, fmt.Errorf("%w: %v", undo, err)
		}
		return nil, errors.Join(err, undo)
	}
	return s, nil
}

// create is Create with the lock held, without the undo.
func (s *Sandbox) create(ctx context.Context, spec runtime.Spec, img image) error {
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, errSlow)
	defer cancel()
	failpoint.Hit("docker.create.intent")
	if err := s.make(ctx, spec, img); err != nil {
		return err
	}
	if s.class == runtime.ClassGVisor {
		done, err := s.setupCgroups(spec.Limits)
		if err != nil {
			return err
		}
		defer done()
		failpoint.Hit("docker.create.gvisor.cgroups")
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.attach(ctx, spec.Limits); err != nil {
		return err
	}
	failpoint.Hit("docker.create.attached")
	return nil
}

// make creates the run directory, or prepares the guest's volume, and creates the container.
func (s *Sandbox) make(ctx context.Context, spec runtime.Spec, img image) error {
	at, err := s.places(ctx, spec.Limits)
	if err != nil {
		return err
	}
	failpoint.Hit("docker.create.cell")
	ask, err := configure(spec, img, s.d.engine, at, s.d.seccomp)
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Image.Ref, err)
	}
	if s.class == runtime.ClassGVisor {
		forGVisor(ask.HostConfig, spec.Limits, s.d.runsc, s.d.gvisorSeccomp)
	}
	s.begun = true
	patient, cancel := outlast(ctx, answerTime)
	defer cancel(nil)
	got, err := s.d.api.ContainerCreate(patient, ask)
	switch {
	case errdefs.IsConflict(err):
		// The name belongs to a container of another call, which stays.
		s.begun = false
		return fmt.Errorf("docker: container %s: %w: %w", ask.Name, errdefs.ErrAlreadyExists, err)
	case errdefs.IsNotFound(err):
		s.d.forget(spec.Image)
		return refused("the engine has lost image %s (%s): prepare it again (%v)", spec.Image.Ref, spec.Image.ID, err)
	case err != nil:
		return s.d.failed(ctx, "create container "+ask.Name, err)
	}
	s.container = got.ID
	failpoint.Hit("docker.create.created")
	if ctx.Err() != nil {
		return s.d.failed(ctx, "create container "+ask.Name, ctx.Err())
	}
	return checkWarnings(got.Warnings)
}

// answerTime is how long to wait for the engine's answer to a create or a start after the caller
// has given up. The engine goes on with it, and undoing it needs the answer.
const answerTime = 2 * time.Second

// outlast returns a context that ends by the given time later than ctx.
func outlast(ctx context.Context, by time.Duration) (context.Context, context.CancelCauseFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(by, func() { cancel(context.Cause(ctx)) })
	})
	return longer, func(cause error) { stop(); cancel(cause) }
}

// checkWarnings fails a create in which the engine ignored a cap: the engine reports that only as a
// warning.
func checkWarnings(warnings []string) error {
	for _, w := range warnings {
		low := strings.ToLower(w)
		if strings.Contains(low, "discarded") || strings.Contains(low, "not support") || strings.Contains(low, "ignored") {
			return refused("the engine would not enforce a cap: %s", strings.TrimSpace(w))
		}
	}
	return nil
}

func (s *Sandbox) places(ctx context.Context, l runtime.Limits) (places, error) {
	if s.mode == ModeStdio {
		name, err := s.d.guestVolume(ctx)
		return places{volume: name}, err
	}
	c, err := rundir.Make(ctx, s.d.cellOptions(s.id, l.ScratchBytes))
	if err != nil {
		return places{}, fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	s.cell = c
	return places{run: c.RunDir(), slot: c.WorkspaceDir()}, nil
}

func (d *Driver) cellOptions(id string, scratch int64) rundir.Options {
	return rundir.Options{Dir: d.cells, ID: id, GuestPath: d.guest, ScratchBytes: scratch, Log: d.log}
}

func (s *Sandbox) start(ctx context.Context) error {
	s.started = true
	// An engine whose start is cut can block the removal for a long time.
	patient, cancel := outlast(ctx, answerTime)
	defer cancel(nil)
	_, err := s.d.api.ContainerStart(patient, s.container, client.ContainerStartOptions{})
	if err == nil {
		err = ctx.Err()
	}
	switch {
	case err == nil:
	case client.IsErrConnectionFailed(err) || ctx.Err() != nil:
		return s.d.failed(ctx, "start container "+containerName(s.id), err)
	default:
		// The engine answered that it cannot start this, whatever class it gives.
		return refused("the engine at %s cannot start sandbox %s from its image with this entrypoint and these limits: %v",
			s.d.host, s.id, err)
	}
	failpoint.Hit("docker.create.started")
	return nil
}

// attach returns a handle of the first process of a started container.
func (s *Sandbox) attach(ctx context.Context, l runtime.Limits) error {
	if s.mode == ModeStdio {
		s.bridge = newBridge(s.ctx, s.d, s.container)
		s.watch()
		return nil
	}
	got, err := s.d.api.ContainerInspect(ctx, s.container, client.ContainerInspectOptions{})
	if err != nil {
		return s.d.failed(ctx, "look at container "+containerName(s.id), err)
	}
	state := got.Container.State
	if state == nil || !state.Running {
		code := -1
		if state != nil {
			code = state.ExitCode
		}
		if code == 128+int(syscall.SIGKILL) || code == 128+int(syscall.SIGTERM) {
			return fmt.Errorf("docker: sandbox %s was killed while it was started: %w", s.id, errdefs.ErrUnavailable)
		}
		// Not NotFound, which would be meaningless as a result of Create.
		return refused("sandbox %s ended while it was started, with code %d: the guest or the template's entrypoint does "+
			"not run on this image", s.id, code)
	}
	if s.proc, err = openProcess(state.Pid, s.container, s.inside()); err != nil {
		// It ran a moment ago. The reason for its end is unknown: perhaps the engine is stopping.
		// If it ends each time, the error is reported after a few attempts.
		return fmt.Errorf("docker: sandbox %s ended while it was started: %v: %w", s.id, err, errdefs.ErrUnavailable)
	}
	s.watch()
	switch err := ocidriver.Attach(ctx, s.cell, s.id, s.class, state.Pid, l); {
	case errors.Is(err, cgroup.ErrUnsupported):
		return refused("sandbox %s: its commands cannot be capped apart from the guest: %v", s.id, err)
	case err != nil:
		return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	return nil
}

// abandon undoes a failed create. It has its own context, since the caller's may be the reason.
func (s *Sandbox) abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), abandonTime, errSlow)
	defer cancel()
	if s.started {
		return s.Destroy(ctx)
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	if s.gone {
		return nil
	}
	// Nothing runs in it, so what is on this host can go even if the engine is out of reach; a
	// container that it may have made is found by its label.
	s.gone = true
	defer s.d.drop(s)
	var err error
	if s.begun {
		err = s.d.removeContainers(ctx, s.id, s.container, false)
	}
	s.forget()
	return errors.Join(err, s.clear(ctx))
}
