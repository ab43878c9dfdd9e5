package guest

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Resize sets the size of a shell's terminal.
func (c *Client) Resize(ctx context.Context, z wire.Resize) error {
	_, err := ask[struct{}](ctx, c, wire.OpResize, z, c.times.short)
	return err
}

// Type sends the content of r to a shell's terminal, until r has ended and the terminal has
// accepted everything. taken is called with the total number of accepted bytes. A command that does
// not read delays it. If ctx ends or r fails, more bytes may have been accepted than reported. A
// blocked Read is left behind, as in Exec.
func (c *Client) Type(ctx context.Context, id string, r io.Reader, taken func(total int64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.begin(ctx, wire.OpInput, wire.ShellRef{ID: id})
	if err != nil {
		return err
	}
	defer s.close()
	in := &counter{r: r}
	var ended atomic.Bool
	// Do not wait for it, see above. The guest acknowledges an empty frame too.
	go s.pump(in, func() { ended.Store(true); _ = s.c.WriteFrame(wire.KindStdin, nil) },
		func(err error) { cancel(fmt.Errorf("%w: %w", errInput, err)) })
	for total := int64(0); ; {
		kind, payload, err := s.next(ctx)
		if err != nil {
			return err
		}
		switch kind {
		case wire.KindChunk:
			chunk, err := decode[wire.Chunk](s, payload)
			if err != nil {
				return err
			}
			sent := in.n.Load()
			if chunk.Offset < total || chunk.Offset > sent {
				return s.protocolError("invalid acknowledgement of %d bytes: %d sent, %d acknowledged before", chunk.Offset, sent,
					total)
			}
			if total = chunk.Offset; taken != nil {
				taken(total)
			}
			if ended.Load() && total == sent {
				return nil
			}
		case wire.KindFailure:
			return s.failure(payload)
		default:
			return s.unexpected(kind)
		}
	}
}

// counter counts the bytes read.
type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(max(n, 0)))
	return n, err
}
