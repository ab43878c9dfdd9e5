package ocidriver

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/rundir"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Figures are those of a local sandbox, with errors of the classes that
// runtime.Meter says.
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
