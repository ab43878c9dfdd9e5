package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// Start starts a background command. With an id that runs or ran already it
// answers with that one.
func (c *Client) Start(ctx context.Context, cmd wire.Command) (wire.Shell, error) {
	return c.askShell(ctx, wire.OpStart, cmd, cmd.ID, c.times.short)
}

// Shell describes one shell.
func (c *Client) Shell(ctx context.Context, id string) (wire.Shell, error) {
	return c.askShell(ctx, wire.OpShell, wire.ShellRef{ID: id}, id, c.times.short)
}

// Kill ends a shell and returns when nothing of it lives.
func (c *Client) Kill(ctx context.Context, k wire.Kill) (wire.Shell, error) {
	return c.askShell(ctx, wire.OpKill, k, k.ID, max(k.Grace, 0)+c.times.short)
}

// askShell checks that the guest speaks of the shell that was asked for. With
// no id, the guest chooses one.
func (c *Client) askShell(ctx context.Context, op wire.Op, body any, id string, within time.Duration) (wire.Shell, error) {
	return askChecked(ctx, c, op, body, within, func(sh *wire.Shell) error {
		if id != "" && sh.ID != id {
			return fmt.Errorf("asked for shell %q it answers for %.200q", id, sh.ID)
		}
		return checkShell(sh)
	})
}

// Shells describes all shells, ended ones that were not forgotten too.
func (c *Client) Shells(ctx context.Context) ([]wire.Shell, error) {
	raw, err := ask[json.RawMessage](ctx, c, wire.OpShells, nil, c.times.short)
	if err != nil {
		return nil, err
	}
	items, err := list(raw, wire.MaxShells, checkShell)
	if err != nil {
		return nil, broke(wire.OpShells, "%v", err)
	}
	return items, nil
}

// Signal sends a signal to a command or shell.
func (c *Client) Signal(ctx context.Context, sig wire.Signal) error {
	_, err := ask[struct{}](ctx, c, wire.OpSignal, sig, c.times.short)
	return err
}

// Forget drops an ended shell and its output.
func (c *Client) Forget(ctx context.Context, id string) error {
	_, err := ask[struct{}](ctx, c, wire.OpForget, wire.ShellRef{ID: id}, c.times.short)
	return err
}

// Output hands a shell's output to sink as it comes. A gap is seen by an
// offset greater than where the data before it ended; offsets never go back.
// The data is valid until sink returns, and an error of sink ends the call. An
// Output that follows, or waits, takes as long as ctx lasts.
func (c *Client) Output(ctx context.Context, q wire.Output, sink func(offset int64, data []byte) error) (wire.OutputEnd, error) {
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
	next int64 // where the stream of bytes stands
	sent int64
	open bool // a chunk's data is due
}

func (o *output) chunk(payload []byte) error {
	c, err := decode[wire.Chunk](o.stream, payload)
	if err != nil {
		return err
	}
	if c.Offset < o.next {
		return o.broke("output goes back from %d to %d", o.next, c.Offset)
	}
	o.next, o.open = c.Offset, true
	return nil
}

func (o *output) data(payload []byte, sink func(int64, []byte) error) error {
	o.open = false
	o.sent += int64(len(payload))
	if o.q.Limit > 0 && !o.q.Follow && o.sent > o.q.Limit {
		return o.broke("it sent more than the %d bytes asked for", o.q.Limit)
	}
	at := o.next
	if o.next += int64(len(payload)); o.next < at {
		return o.broke("output at offset %d", at)
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
		err = fmt.Errorf("it is of shell %.200q", end.Shell.ID)
	}
	if err == nil && end.Next < o.next {
		err = fmt.Errorf("it ends at %d, before %d", end.Next, o.next)
	}
	if err != nil {
		return wire.OutputEnd{}, o.broke("the output's end: %v", err)
	}
	return end, nil
}

// errSent ends an Input over a stream that cannot be ended by half.
var errSent = errors.New("all input is sent")

// Input sends what r gives to a shell, and returns when the guest has taken
// all of it. If r ends, closing closes the shell's stdin, which otherwise
// stays open. If ctx ends or r fails, a part may have been taken. A Read that
// blocks is left behind as with Exec.
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
		// What was written is delivered before the stream's end, but nobody
		// can answer: whether the shell is there to take it has to be asked.
		s.close()
		_, err = c.Shell(ctx, id)
	}
	return err
}
