// Package wrap has decorators of a runtime.Driver: Timeout bounds each call, Log logs each call,
// Limit bounds concurrent creations. Each adds one concern, works with any driver and with the
// others, and passes everything else through unchanged.
//
// The package starts no goroutine. It adds errors of class Unavailable (Timeout) and those of the
// caller's context (Limit). A decorated driver or sandbox allows the same concurrency as the
// original.
package wrap

import (
	"context"
	"net"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Names of the calls that decorators see.
const (
	Prepare = "prepare"
	Create  = "create"
	Adopt   = "adopt"
	List    = "list"
	Remove  = "remove"
	Open    = "open"
	Bind    = "bind"
	Unbind  = "unbind"
	Destroy = "destroy"
	Figures = "figures"
)

// interceptor carries out one call of a driver or sandbox. subject is the sandbox's id, for Prepare
// the image's id, and for List the owner.
type interceptor func(ctx context.Context, op, subject string, do func(context.Context) error) error

type driver struct {
	runtime.Driver
	intercept interceptor
}

func (d *driver) Prepare(ctx context.Context, image runtime.Image) error {
	return d.intercept(ctx, Prepare, image.ID, func(ctx context.Context) error {
		return d.Driver.Prepare(ctx, image)
	})
}

func (d *driver) Create(ctx context.Context, spec runtime.Spec) (made runtime.Sandbox, err error) {
	err = d.intercept(ctx, Create, spec.ID, func(ctx context.Context) error {
		made, err = d.Driver.Create(ctx, spec)
		return err
	})
	return d.wrap(made, err)
}

func (d *driver) Adopt(ctx context.Context, id string) (found runtime.Sandbox, err error) {
	err = d.intercept(ctx, Adopt, id, func(ctx context.Context) error {
		found, err = d.Driver.Adopt(ctx, id)
		return err
	})
	return d.wrap(found, err)
}

func (d *driver) wrap(s runtime.Sandbox, err error) (runtime.Sandbox, error) {
	if err != nil {
		return nil, err
	}
	return &sandbox{Sandbox: s, intercept: d.intercept}, nil
}

func (d *driver) List(ctx context.Context, owner string) (found []runtime.Found, err error) {
	err = d.intercept(ctx, List, owner, func(ctx context.Context) error {
		found, err = d.Driver.List(ctx, owner)
		return err
	})
	return found, err
}

func (d *driver) Remove(ctx context.Context, id string) error {
	return d.intercept(ctx, Remove, id, func(ctx context.Context) error { return d.Driver.Remove(ctx, id) })
}

type sandbox struct {
	runtime.Sandbox
	intercept interceptor
}

func (s *sandbox) Open(ctx context.Context) (conn net.Conn, err error) {
	err = s.intercept(ctx, Open, s.ID(), func(ctx context.Context) error {
		conn, err = s.Sandbox.Open(ctx)
		return err
	})
	return conn, err
}

func (s *sandbox) Bind(ctx context.Context, b runtime.Binding) error {
	return s.intercept(ctx, Bind, s.ID(), func(ctx context.Context) error { return s.Sandbox.Bind(ctx, b) })
}

func (s *sandbox) Unbind(ctx context.Context) error {
	return s.intercept(ctx, Unbind, s.ID(), s.Sandbox.Unbind)
}

// Figures makes every decorated sandbox a runtime.Meter. It returns NotImplemented if the original
// is none.
func (s *sandbox) Figures(ctx context.Context) (f runtime.Figures, err error) {
	err = s.intercept(ctx, Figures, s.ID(), func(ctx context.Context) error {
		f, err = runtime.FiguresOf(ctx, s.Sandbox)
		return err
	})
	return f, err
}

func (s *sandbox) Destroy(ctx context.Context) error {
	return s.intercept(ctx, Destroy, s.ID(), s.Sandbox.Destroy)
}
