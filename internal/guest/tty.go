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

// Type gives what r gives to a shell's terminal, until r ends and all is taken.
// taken is called with the number of bytes that the terminal has got so far; a
// command that does not read holds it up. If ctx ends or r fails, what was not
// told as taken may have been. A Read that blocks is left behind as with Exec.
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
	// Not waited for, see above. An empty frame is answered as every other is.
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
				return s.broke("it took %d bytes of %d, after %d", chunk.Offset, sent, total)
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

// counter counts what was read.
type counter struct {
	r io.Reader
	n atomic.Int64
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n.Add(int64(max(n, 0)))
	return n, err
}
