// Package guest is the host's client of the guest in a sandbox. It speaks the protocol of
// internal/guest/wire.
//
// Everything that the guest sends is untrusted. Frames, counts, numbers and texts are checked
// before they are returned. A guest that breaks the protocol, stops responding, or ends a stream
// without an answer causes an error that wraps [ErrLost], never a result. During long silences, for
// example of a command, the guest is pinged on another stream. A guest that answers pings may take
// any time; the caller's context limits that.
//
// Each call uses one stream and closes it before it returns. During a call, one goroutine sends
// from the caller's Reader, and another one sends signals. They end with the call, except that a
// blocked Read of the caller's Reader keeps its goroutine until it returns. The owner of the Reader
// must close it.
//
// Errors: *[Error] is a refusal by the guest, with a class of containerd/errdefs. ErrLost has class
// Unavailable. When a context ends, the error wraps its cause.
package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn"
)

// Opener opens byte streams to a guest. A runtime.Sandbox implements it.
type Opener interface {
	Open(ctx context.Context) (net.Conn, error)
}

// Fenced is an Opener whose host has an epoch, see wire.Request.
type Fenced interface{ Epoch() int64 }

// Time limits. Other operations end only with the caller's context.
const (
	// OpenTime limits opening a stream.
	OpenTime = 30 * time.Second
	// QuietTime is how long a stream may be silent before the guest is pinged.
	QuietTime = 15 * time.Second
	// PatienceTime is how long pings may remain unanswered before the guest counts as lost.
	// On a stream that continues after an outage of its connection, guestconn.OutageTime applies.
	PatienceTime = 30 * time.Second
	// ShortTime limits short operations. Long operations may exceed their own time limit by it. It
	// leaves time for the answer after an outage.
	ShortTime = guestconn.OutageTime + wire.HeaderTime
	// CancelTime limits the wait for the ending of a command that the caller cancelled.
	CancelTime = 5 * time.Second
)

// times contains the time limits. Tests set shorter ones.
type times struct {
	open, quiet, patience, outage, short, ping, cancel time.Duration
}

// Client is a client of one guest. Its methods are safe for concurrent use.
type Client struct {
	opener  Opener
	epoch   int64 // in all requests
	times   times
	buffers sync.Pool // of *[]byte: a data frame with its header
}

// bufferSize is the size of a read from a caller's Reader and of the frame's header.
const bufferSize = wire.HeaderLen + 128<<10

// New returns a client. It opens no stream.
func New(o Opener) *Client {
	c := &Client{opener: o, times: times{
		open: OpenTime, quiet: QuietTime, patience: PatienceTime, outage: guestconn.OutageTime, short: ShortTime,
		ping: wire.HeaderTime, cancel: CancelTime,
	}}
	if f, ok := o.(Fenced); ok {
		c.epoch = f.Epoch()
	}
	c.buffers.New = func() any { b := make([]byte, bufferSize); return &b }
	return c
}

// Ping checks that the guest responds. It takes at most wire.HeaderTime plus the time to open a
// stream. If the guest has another protocol version, the error has class FailedPrecondition.
func (c *Client) Ping(ctx context.Context) (wire.Pong, error) {
	pong, err := ask[wire.Pong](ctx, c, wire.OpPing, nil, c.times.ping)
	if err == nil && pong.Version != wire.Version {
		return wire.Pong{}, &Error{Code: wire.FailedPrecondition,
			Message: fmt.Sprintf("the guest has protocol version %d, this host has %d", pong.Version, wire.Version)}
	}
	return pong, err
}

// Base sets the defaults of all commands. The sandbox must be unused.
func (c *Client) Base(ctx context.Context, base wire.Base) error {
	_, err := ask[struct{}](ctx, c, wire.OpBase, base, c.times.short)
	return err
}

// Claim binds the sandbox to a lease. Repeating it with the same lease has no effect; another lease
// is refused.
func (c *Client) Claim(ctx context.Context, claim wire.Claim) error {
	_, err := ask[struct{}](ctx, c, wire.OpClaim, claim, c.times.short)
	return err
}

// End kills every command and ends the sandbox's first process. It returns before that has
// happened.
func (c *Client) End(ctx context.Context) error {
	_, err := ask[struct{}](ctx, c, wire.OpEnd, nil, c.times.short)
	return err
}

// ask sends a request that has one reply. If within is 0, only ctx limits the time.
func ask[T any](ctx context.Context, c *Client, op wire.Op, body any, within time.Duration) (T, error) {
	var reply T
	s, err := c.begin(ctx, op, body)
	if err != nil {
		return reply, err
	}
	defer s.close()
	s.within(within)
	payload, err := s.reply(ctx)
	if err != nil {
		return reply, err
	}
	return decode[T](s, payload)
}

// askChecked is like ask, and checks the reply.
func askChecked[T any](ctx context.Context, c *Client, op wire.Op, body any, within time.Duration,
	check func(*T) error) (T, error) {
	v, err := ask[T](ctx, c, op, body, within)
	if err == nil {
		if err = check(&v); err == nil {
			return v, nil
		}
		err = protocolError(op, "%v", err)
	}
	var none T
	return none, err
}

// askList asks for a list of at most limit items and checks each of them.
func askList[T any](ctx context.Context, c *Client, op wire.Op, limit int, check func(*T) error) ([]T, error) {
	raw, err := ask[json.RawMessage](ctx, c, op, nil, c.times.short)
	if err != nil {
		return nil, err
	}
	items, err := list(raw, limit, check)
	if err != nil {
		return nil, protocolError(op, "%v", err)
	}
	return items, nil
}

// begin opens a stream and sends the request. The caller must close the stream.
func (c *Client) begin(ctx context.Context, op wire.Op, body any) (*stream, error) {
	req, err := encode(op, body, c.epoch)
	if err != nil {
		return nil, err
	}
	octx, cancel := context.WithTimeoutCause(ctx, c.times.open,
		fmt.Errorf("could not open a stream to the guest within %s", c.times.open))
	nc, err := c.opener.Open(octx)
	cause := context.Cause(octx)
	cancel()
	if err != nil {
		return nil, unreached(ctx, op, err, cause)
	}
	if err := c.excludeFromCount(ctx, nc, op); err != nil {
		_ = nc.Close()
		return nil, unreached(ctx, op, err, nil)
	}
	s := &stream{client: c, nc: nc, c: newConn(nc, op), op: op}
	s.watch(ctx)
	err = nc.SetWriteDeadline(time.Now().Add(wire.HeaderTime))
	if err == nil {
		err = s.c.WriteFrame(wire.KindRequest, req)
	}
	_ = nc.SetWriteDeadline(time.Time{}) // fails if the guest has hung up; the next read reports that
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	} else if err != nil {
		err = s.lost(err)
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func encode(op wire.Op, body any, epoch int64) ([]byte, error) {
	r := wire.Request{Version: wire.Version, Op: op, Epoch: epoch}
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, &Error{Code: wire.InvalidArgument, Message: fmt.Sprintf("encode %s: %v", op, err)}
		}
		r.Body = raw
	}
	b, err := json.Marshal(r)
	if err == nil && len(b) > wire.MaxHeader {
		err = fmt.Errorf("has %d bytes: the maximum is %d", len(b), wire.MaxHeader)
	}
	if err != nil {
		return nil, &Error{Code: wire.InvalidArgument, Message: fmt.Sprintf("the request for %s %v", op, err)}
	}
	return b, nil
}

// unreached returns the error of a request that was not sent.
func unreached(ctx context.Context, op wire.Op, err, cause error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	if cause != nil {
		return fmt.Errorf("%s: %w: %w", op, cause, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("%s: open a stream to the guest: %w", op, errors.Join(err, errdefs.ErrUnavailable))
}
