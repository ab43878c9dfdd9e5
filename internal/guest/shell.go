package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Start starts a background command. If the id exists, it returns that shell.
func (c *Client) Start(ctx context.Context, cmd wire.Command) (wire.Shell, error) {
	return c.askShell(ctx, wire.OpStart, cmd, cmd.ID, c.times.short)
}

// Shell describes one shell.
func (c *Client) Shell(ctx context.Context, id string) (wire.Shell, error) {
	return c.askShell(ctx, wire.OpShell, wire.ShellRef{ID: id}, id, c.times.short)
}

// Kill kills a shell and returns when all its processes have ended.
func (c *Client) Kill(ctx context.Context, k wire.Kill) (wire.Shell, error) {
	return c.askShell(ctx, wire.OpKill, k, k.ID, max(k.Grace, 0)+c.times.short)
}

// askShell sends a request about a shell and checks that the answer is about the same one. If id is
// empty, the guest chooses it.
func (c *Client) askShell(ctx context.Context, op wire.Op, body any, id string,
	within time.Duration) (wire.Shell, error) {
	return askChecked(ctx, c, op, body, within, func(sh *wire.Shell) error {
		if id != "" && sh.ID != id {
			return fmt.Errorf("answer about shell %.200q instead of %q", sh.ID, id)
		}
		return checkShell(sh)
	})
}

// Shells describes all shells, including ended ones that were not forgotten.
func (c *Client) Shells(ctx context.Context) ([]wire.Shell, error) {
	return askList(ctx, c, wire.OpShells, wire.MaxShells, checkShell)
}

// Signal sends a signal to a command or shell.
func (c *Client) Signal(ctx context.Context, sig wire.Signal) error {
	_, err := ask[struct{}](ctx, c, wire.OpSignal, sig, c.times.short)
	return err
}

// Forget removes an ended shell and its output.
func (c *Client) Forget(ctx context.Context, id string) error {
	_, err := ask[struct{}](ctx, c, wire.OpForget, wire.ShellRef{ID: id}, c.times.short)
	return err
}

// Output passes a shell's output to sink as it arrives. An offset beyond the end of the previous
// data means that the bytes between were dropped. Offsets never decrease. data is valid until sink
// returns, and an error of sink ends the call. An Output that follows or waits lasts until ctx
// ends.
func (c *Client) Output(ctx context.Context, q wire.Output,
	sink func(offset int64, data []byte) error) (wire.OutputEnd, error) {
	s, err := c.begin(ctx, wire.OpOutput, q)
	if err != nil {
		return wire.OutputEnd{}, err
	}
	defer s.close()
	o := &output{stream: s, q: q, next: q.Offset}
	for {
		kind, payload, err := s.next(ctx)
		if err != nil {
			return wire.OutputEnd{}, err
		}
		switch {
		case kind == wire.KindChunk && !o.open:
			err = o.chunk(payload)
		case kind == wire.KindData && o.open:
			err = o.data(payload, sink)
		case kind == wire.KindFailure:
			return wire.OutputEnd{}, s.failure(payload)
		case kind == wire.KindReply && !o.open:
			return o.end(payload)
		default:
			err = s.unexpected(kind)
		}
		if err != nil {
			return wire.OutputEnd{}, err
		}
	}
}

// output is the state of one Output.
type output struct {
	*stream
	q    wire.Output
	next int64 // the offset after the last byte
	sent int64
	open bool // the data of a chunk must follow
}

func (o *output) chunk(payload []byte) error {
	c, err := decode[wire.Chunk](o.stream, payload)
	if err != nil {
		return err
	}
	if c.Offset < o.next {
		return o.protocolError("output offset decreased from %d to %d", o.next, c.Offset)
	}
	o.next, o.open = c.Offset, true
	return nil
}

func (o *output) data(payload []byte, sink func(int64, []byte) error) error {
	o.open = false
	o.sent += int64(len(payload))
	if o.q.Limit > 0 && !o.q.Follow && o.sent > o.q.Limit {
		return o.protocolError("more output than the requested %d bytes", o.q.Limit)
	}
	at := o.next
	if o.next += int64(len(payload)); o.next < at {
		return o.protocolError("output offset %d overflows", at)
	}
	if err := sink(at, payload); err != nil {
		return fmt.Errorf("output: %w", err)
	}
	return nil
}

func (o *output) end(payload []byte) (wire.OutputEnd, error) {
	end, err := decode[wire.OutputEnd](o.stream, payload)
	if err != nil {
		return wire.OutputEnd{}, err
	}
	err = checkShell(&end.Shell)
	if err == nil && end.Shell.ID != o.q.ID {
		err = fmt.Errorf("answer about shell %.200q", end.Shell.ID)
	}
	if err == nil && end.Next < o.next {
		err = fmt.Errorf("end at %d, before %d", end.Next, o.next)
	}
	if err != nil {
		return wire.OutputEnd{}, o.protocolError("invalid end of output: %v", err)
	}
	return end, nil
}

// errSent ends an Input on a stream without half-close.
var errSent = errors.New("all input is sent")

// Input sends the content of r to a shell and returns when the guest has accepted all of it. If
// closing is set, the end of r closes the shell's stdin. If ctx ends or r fails, a part may have
// been accepted. A blocked Read is left behind, as in Exec.
func (c *Client) Input(ctx context.Context, id string, r io.Reader, closing bool) error {
	sctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.begin(sctx, wire.OpInput, wire.ShellRef{ID: id})
	if err != nil {
		return err
	}
	defer s.close()
	done := s.eof
	if !closing {
		done = func() {
			if !s.hangUp() {
				cancel(errSent)
			}
		}
	}
	go s.pump(r, done, func(err error) { cancel(fmt.Errorf("%w: %w", errInput, err)) })
	payload, err := s.reply(sctx)
	if err == nil {
		_, err = decode[struct{}](s, payload)
	}
	if errors.Is(err, errSent) {
		// The guest receives everything written before the stream's end, but cannot answer. Ask on
		// another stream whether the shell still exists.
		s.close()
		_, err = c.Shell(ctx, id)
	}
	return err
}
