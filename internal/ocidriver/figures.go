package ocidriver

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Figures returns the figures of a local sandbox, with the error classes that runtime.Meter
// documents.
func Figures(c *rundir.Dir) (runtime.Figures, error) {
	f, err := c.Figures()
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return runtime.Figures{}, fmt.Errorf("%w: %w", err, errdefs.ErrNotImplemented)
	case errors.Is(err, fs.ErrNotExist):
		return runtime.Figures{}, fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	}
	return runtime.Figures(f), err
}
