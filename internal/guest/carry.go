package guest

import (
	"context"
	"io"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Unpack extracts the stream r, in the format of package filesync, into the workspace. If r fails
// or ctx ends, some files may have been written.
func (c *Client) Unpack(ctx context.Context, q wire.Carry, r io.Reader) (wire.Carried, error) {
	return upload(ctx, c, wire.OpUnpack, q, r, func(*wire.Carried) error { return nil })
}

// Pack writes the workspace to w. The data is untrusted, and complete only without an error.
func (c *Client) Pack(ctx context.Context, q wire.Carry, w io.Writer) (wire.Carried, error) {
	s, err := c.begin(ctx, wire.OpPack, q)
	if err != nil {
		return wire.Carried{}, err
	}
	defer s.close()
	for {
		kind, payload, err := s.next(ctx)
		switch {
		case err != nil:
			return wire.Carried{}, err
		case kind == wire.KindFailure:
			return wire.Carried{}, s.failure(payload)
		case kind == wire.KindReply:
			return decode[wire.Carried](s, payload)
		case kind != wire.KindData:
			return wire.Carried{}, s.unexpected(kind)
		}
		if _, err := w.Write(payload); err != nil {
			return wire.Carried{}, err
		}
	}
}
