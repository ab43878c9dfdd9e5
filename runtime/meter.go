package runtime

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Figures is what a sandbox uses now, including its guest: CPU time since its creation, bytes of
// memory (with memory file systems, without cache that the kernel can drop), and the number of
// processes and threads. A limit of 0 is unknown.
type Figures struct {
	CPU                 time.Duration
	Memory, MemoryLimit int64
	Pids, PidsLimit     int64
}

// A Meter is a Sandbox whose use can be measured on the host, without its guest, which may be busy
// or lie.
type Meter interface {
	// Figures returns the present use. NotImplemented: a sandbox of this kind cannot be measured.
	// NotFound: it is gone. It is cheap enough for one call per second.
	Figures(ctx context.Context) (Figures, error)
}

// FiguresOf returns the figures of a sandbox, or NotImplemented if it is not a Meter.
func FiguresOf(ctx context.Context, s Sandbox) (Figures, error) {
	m, ok := s.(Meter)
	if !ok {
		return Figures{}, fmt.Errorf("figures of sandbox %s: its driver tells none: %w", s.ID(), errdefs.ErrNotImplemented)
	}
	return m.Figures(ctx)
}
