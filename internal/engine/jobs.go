package engine

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/jobs"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// jobSandboxes are the engine's operations on sandboxes that jobs need.
type jobSandboxes struct{ *Engine }

var _ jobs.Sandboxes = jobSandboxes{}

// jobOptions returns the options of the service of jobs.
func (e *Engine) jobOptions(opts Options) jobs.Options {
	return jobs.Options{
		Dir: opts.JobsDir, Store: e.store, Scheduler: e.sched, Callers: e.Callers, Keys: e.idem,
		Sandboxes: jobSandboxes{e}, Events: e.Events, MaxRunning: e.limits.MaxSandboxes, MaxTTL: e.limits.MaxTTL,
		MaxOutput: e.limits.MaxOutput,
		Limits:    opts.Jobs, Log: e.log,
	}
}

// Acquire leases a sandbox for the caller.
func (s jobSandboxes) Acquire(
	ctx context.Context, p caller.Principal, r v1.SandboxRequest, a core.Acquisition,
) (*scheduler.Lease, error) {
	return s.acquire(ctx, p, r, a)
}

// CheckLease returns an error about a request that can never be served. native reports that the
// engine's own queue would start the sandbox.
func (s jobSandboxes) CheckLease(p caller.Principal, r v1.SandboxRequest, native bool) error {
	if err := s.Templates.Resolve(&r); err != nil {
		return err
	}
	if err := resolveMode(&r); err != nil {
		return err
	}
	if err := s.checkRequest(r); err != nil {
		return err
	}
	if err := s.checkKnown(p, r); err != nil {
		return err
	}
	if native && r.Workspace != "" {
		if err := s.sched.CheckNativeWorkspace(r.Template); err != nil {
			return err
		}
	}
	_, err := s.requestedGrant(p, r, core.Acquisition{})
	return err
}

// CheckNative returns an *InvalidError of field native if the runtime has no queue of its own.
func (s jobSandboxes) CheckNative(ctx context.Context) error {
	err := s.sched.CheckQueue(ctx)
	switch {
	case err == nil:
		return nil
	case errdefs.IsFailedPrecondition(err): // its text names the missing permissions
		return &usererror.InvalidError{
			Field: "native", Class: errdefs.ErrFailedPrecondition,
			Message: "cannot be used: " + strings.TrimSuffix(err.Error(), ": "+errdefs.ErrFailedPrecondition.Error()),
		}
	case errdefs.IsNotImplemented(err):
		return usererror.Invalid("native",
			"needs runtime kubernetes, and this service has %s: leave it out to use a warm sandbox", s.driver.Name())
	}
	return err
}

// TemplateOfImage returns the first template, by name, that has the image.
func (s jobSandboxes) TemplateOfImage(_ caller.Principal, image string) (string, error) {
	want, err := ref.Parse(image)
	if err != nil {
		return "", usererror.Invalid("image", "is %.200q, which is not a reference: use NAME:TAG or NAME@DIGEST", image)
	}
	names := s.sched.Templates()
	slices.Sort(names)
	for _, name := range names {
		t, ok := s.sched.Template(name)
		if got, err := ref.Parse(t.Spec.Image.Ref); ok && err == nil && got.String() == want.String() {
			return name, nil
		}
	}
	return "", &usererror.InvalidError{
		Field: "image", Message: "has no template: add a template with this image, or use template",
		Class: errdefs.ErrNotFound,
	}
}

// Command validates a command and converts it to the guest's form, with the default timeout.
func (s jobSandboxes) Command(id string, x v1.Exec) (wire.Command, error) {
	c, err := s.command(id, x)
	c.Timeout = cmp.Or(c.Timeout, s.limits.Timeout)
	return c, err
}

// Start starts a background command. One for the sandbox's shell falls back to sh if the sandbox
// has no bash.
func (s jobSandboxes) Start(use *scheduler.Use, c wire.Command, shell bool) (wire.Shell, error) {
	return startProgram(use, shell, &c.Argv[0], func() (wire.Shell, error) { return use.Start(use.Ctx, c) })
}

// Present converts a result to its API form.
func (jobSandboxes) Present(id string, r runtime.Result) v1.ExecResult { return present(id, r) }
