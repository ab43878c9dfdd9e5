//go:build linux

package standalone

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// noDriver is the driver of an engine that creates no sandboxes. Commands about images and
// workspaces need no container engine.
type noDriver struct{}

var errNoDriver = fmt.Errorf("this command has no runtime: %w", errdefs.ErrNotImplemented)

// Name implements runtime.Driver.
func (noDriver) Name() string { return "none" }

// NeedsUnpackedRoot implements runtime.Driver.
func (noDriver) NeedsUnpackedRoot() bool { return false }

// Classes implements runtime.Driver. It offers none.
func (noDriver) Classes() []runtime.Class { return nil }

// Capabilities implements runtime.Driver. There are none.
func (noDriver) Capabilities(runtime.Class) runtime.Capabilities { return nil }

// Prepare implements runtime.Driver and does nothing.
func (noDriver) Prepare(context.Context, runtime.Image) error { return nil }

// Create implements runtime.Driver and always fails.
func (noDriver) Create(context.Context, runtime.Spec) (runtime.Sandbox, error) {
	return nil, errNoDriver
}

// Adopt implements runtime.Driver and finds nothing.
func (noDriver) Adopt(context.Context, string) (runtime.Sandbox, error) {
	return nil, errdefs.ErrNotFound
}

// List implements runtime.Driver. There are no sandboxes.
func (noDriver) List(context.Context, string) ([]runtime.Found, error) { return nil, nil }

// Remove implements runtime.Driver and does nothing.
func (noDriver) Remove(context.Context, string) error { return nil }

// Close implements runtime.Driver and does nothing.
func (noDriver) Close() error { return nil }
