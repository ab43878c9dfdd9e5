package docker

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
)

// errSlow is the cause of contexts that the package itself ends.
var errSlow = errors.New("the engine did not answer in time")

// failed describes a failed request to the engine and classes the answer. An engine that could not
// be asked, or did not know, is Unavailable: nothing follows about the sandbox.
func (d *Driver) failed(ctx context.Context, what string, err error) error {
	switch {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), errSlow):
		return fmt.Errorf("docker engine at %s: %s: %w: %w", d.host, what, errdefs.ErrUnavailable, errSlow)
	case ctx.Err() != nil:
		return fmt.Errorf("docker engine at %s: %s: %w", d.host, what, context.Cause(ctx))
	case client.IsErrConnectionFailed(err), errdefs.IsUnavailable(err), errdefs.IsInternal(err), errdefs.IsUnknown(err),
		!classed(err):
		return fmt.Errorf("docker engine at %s: %s: %w: %w", d.host, what, errdefs.ErrUnavailable, err)
	}
	return fmt.Errorf("docker engine at %s: %s: %w", d.host, what, err)
}

// classed reports whether the engine gave err a class.
func classed(err error) bool {
	return errdefs.IsNotFound(err) || errdefs.IsConflict(err) || errdefs.IsInvalidArgument(err) ||
		errdefs.IsAlreadyExists(err) ||
		errdefs.IsFailedPrecondition(err) || errdefs.IsPermissionDenied(err) || errdefs.IsUnauthorized(err) ||
		errdefs.IsNotModified(err) ||
		errdefs.IsNotImplemented(err)
}

// refused returns an error about a cap or field that this engine cannot provide, with what to do.
func refused(format string, args ...any) error {
	return fmt.Errorf("docker: %s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}
