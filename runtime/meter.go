package runtime

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Figures are what a sandbox uses now, its guest included: the time on the
// processors since it was made, octets of memory (files in memory file systems
// included, cache that can be dropped not), processes and threads. A limit of
// 0 is none that is known.
type Figures struct {
	CPU                 time.Duration
	Memory, MemoryLimit int64
	Pids, PidsLimit     int64
}

// A Meter is a Sandbox whose use can be read while it runs, from the host and
// without its guest, which may be busy or lie.
type Meter interface {
	// Figures are of this moment. NotImplemented: this sandbox is made in a way
	// that tells none; NotFound: it is gone. Cheap enough for once a second.
	Figures(ctx context.Context) (Figures, error)
}

// FiguresOf asks a sandbox that may be a Meter.
func FiguresOf(ctx context.Context, s Sandbox) (Figures, error) {
	m, ok := s.(Meter)
	if !ok {
		return Figures{}, fmt.Errorf("figures of sandbox %s: its driver tells none: %w", s.ID(), errdefs.ErrNotImplemented)
	}
	return m.Figures(ctx)
}
