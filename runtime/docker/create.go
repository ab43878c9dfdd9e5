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
	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// commandCPU is the part of a sandbox's CPU that its commands get: the guest
// answers when they use all of theirs.
const commandCPU = 0.95

// createTime bounds a Create whose caller set no deadline; abandonTime bounds
// the undoing of one.
const (
	createTime  = 2 * time.Minute
	abandonTime = 30 * time.Second
)

// Create makes a sandbox and returns when its first process runs. If it fails,
// what was made is removed again; what could not be removed is found by List.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
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

// raise makes a sandbox of an image that the engine knows.
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
			// The engine went away in the middle: what it did to the container says nothing of the Spec.
			return nil, fmt.Errorf("%w: %v", undo, err)
		}
		return nil, errors.Join(err, undo)
	}
	return s, nil
}

// create is Create with the turn held, without the undoing.
func (s *Sandbox) create(ctx context.Context, spec runtime.Spec, img image) error {
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, errSlow)
	defer cancel()
	failpoint.Hit("docker.create.intent")
	if err := s.make(ctx, spec, img); err != nil {
		return err
	}
	if s.class == runtime.ClassGVisor {
		done, err := s.cage(spec.Limits)
		if err != nil {
			return err
		}
		defer done()
		failpoint.Hit("docker.create.gvisor.cgroups")
	}
	if err := s.start(ctx); err != nil {
		return err
	}
	if err := s.attach(ctx, share(spec.Limits)); err != nil {
		return err
	}
	failpoint.Hit("docker.create.attached")
	return nil
}

// share is what the commands of a sandbox get of its caps.
func share(l runtime.Limits) cgroup.Share {
	return cgroup.Share{
		MemoryBytes: l.MemoryBytes - runtime.GuestReserveBytes,
		Pids:        l.Pids - runtime.GuestReservePids,
		CPU:         l.CPUs * commandCPU,
	}
}

// make makes the cell, or sees to the guest's volume, and the container.
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
		// The name is taken by a container that is not of this call: it stays.
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

// answerTime is how long the engine's answer to a create is waited for after
// the caller has given up: the engine goes on with it either way, and only who
// knows the answer can undo it.
const answerTime = 2 * time.Second

// outlast gives a context that ends that much later than ctx.
func outlast(ctx context.Context, by time.Duration) (context.Context, context.CancelCauseFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		time.AfterFunc(by, func() { cancel(context.Cause(ctx)) })
	})
	return longer, func(cause error) { stop(); cancel(cause) }
}

// checkWarnings fails a create in which the engine left out a cap: it says so
// in a warning only.
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
	_, err := s.d.api.ContainerStart(ctx, s.container, client.ContainerStartOptions{})
	switch {
	case err == nil:
	case client.IsErrConnectionFailed(err) || ctx.Err() != nil:
		return s.d.failed(ctx, "start container "+containerName(s.id), err)
	default:
		// The engine answered, and whatever class it gives: it cannot start this.
		return refused("the engine at %s cannot start sandbox %s from its image with this entrypoint and these limits: %v", s.d.host, s.id, err)
	}
	failpoint.Hit("docker.create.started")
	return nil
}

// attach takes hold of the first process of a container that was started.
func (s *Sandbox) attach(ctx context.Context, share cgroup.Share) error {
	if s.mode == ModeStdio {
		s.bridge = newBridge(s.d, s.container)
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
		// Not NotFound: for Create that would mean nothing to the caller.
		return refused("sandbox %s ended while it was started, with code %d: the guest or the template's entrypoint does not run on this image", s.id, code)
	}
	if s.proc, err = openProcess(state.Pid, s.container, s.inside()); err != nil {
		// It ran a moment ago. Who ended it is not known: perhaps an engine that stops. One that always ends by itself is told after a few.
		return fmt.Errorf("docker: sandbox %s ended while it was started: %v: %w", s.id, err, errdefs.ErrUnavailable)
	}
	s.watch()
	switch err := s.join(ctx, state.Pid, share); {
	case errors.Is(err, cgroup.ErrUnsupported):
		return refused("sandbox %s: its commands cannot be capped apart from the guest: %v", s.id, err)
	case err != nil:
		return fmt.Errorf("docker: sandbox %s: %w", s.id, err)
	}
	return nil
}

// abandon undoes a create that failed. Its own context: the caller's may be why.
func (s *Sandbox) abandon(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), abandonTime, errSlow)
	defer cancel()
	if s.started {
		return s.Destroy(ctx)
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer func() { <-s.turn }()
	if s.gone {
		return nil
	}
	// Nothing runs in it, so what is on this host can go even if the engine is
	// out of reach; a container it may have made is found by its label.
	s.gone = true
	defer s.d.drop(s)
	var err error
	if s.begun {
		err = s.d.removeContainers(ctx, s.id, s.container, false)
	}
	s.letGo()
	return errors.Join(err, s.clear(ctx))
}
