// Package guest is the host's side of the protocol in internal/guest/wire: a
// client for the guest of one sandbox.
//
// Whatever the guest sends is foreign. Frames, counts, numbers and texts are
// checked before they are handed on; a guest that breaks the protocol, falls
// silent, or ends a stream without an answer is an error that wraps [ErrLost],
// and never a result. While the guest may be silent for long, as during a
// command, it is pinged on another stream. What it may do is take its time
// while it answers pings: the caller's context bounds that.
//
// Each call uses one stream and closes it before it returns. While a call runs
// there is one goroutine that sends what the caller's Reader gives and one for
// signals. They end with the call, except that a Reader of the caller's that
// blocks keeps its goroutine until that one Read returns: whoever owns the
// Reader closes it.
//
// Errors: *[Error] is what the guest refused, classed by containerd/errdefs;
// ErrLost is of class Unavailable; a context that ended gives its cause.
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
)

// Opener opens byte streams to a guest; a runtime.Sandbox is one.
type Opener interface {
	Open(ctx context.Context) (net.Conn, error)
}

// Bounds in time. What has no bound here ends with the caller's context.
const (
	// OpenTime is how long a stream may take to be opened.
	OpenTime = 30 * time.Second
	// QuietTime is how long a stream may be silent before the guest is pinged.
	QuietTime = 15 * time.Second
	// PatienceTime is how long pings may go unanswered before it is lost.
	PatienceTime = 30 * time.Second
	// ShortTime is how long a short operation may take, and how much longer
	// than its own time a long one.
	ShortTime = time.Minute
	// CancelTime is how long the guest has to tell the ending of a command
	// that the caller gave up.
	CancelTime = 5 * time.Second
)

// times are those bounds; tests have shorter ones.
type times struct {
	open, quiet, patience, short, ping, cancel time.Duration
}

// Client speaks to one guest. Methods may be called concurrently.
type Client struct {
	opener  Opener
	times   times
	buffers sync.Pool // of *[]byte, one data frame with its header
}

// bufferSize is what is read from a caller's Reader at a time.
const bufferSize = wire.HeaderLen + 128<<10

// New makes a client. It opens nothing yet.
func New(o Opener) *Client {
	c := &Client{opener: o, times: times{
		open: OpenTime, quiet: QuietTime, patience: PatienceTime, short: ShortTime, ping: wire.HeaderTime, cancel: CancelTime,
	}}
	c.buffers.New = func() any { b := make([]byte, bufferSize); return &b }
	return c
}

// Ping asks whether the guest is well. It answers within wire.HeaderTime plus
// the time to open a stream. FailedPrecondition: the guest is of another
// version.
func (c *Client) Ping(ctx context.Context) (wire.Pong, error) {
	pong, err := ask[wire.Pong](ctx, c, wire.OpPing, nil, c.times.ping)
	if err == nil && pong.Version != wire.Version {
		return wire.Pong{}, &Error{Code: wire.FailedPrecondition, Message: fmt.Sprintf("the guest speaks version %d, this host %d", pong.Version, wire.Version)}
	}
	return pong, err
}

// Base sets what all commands have; for a sandbox that nobody has used.
func (c *Client) Base(ctx context.Context, base wire.Base) error {
	_, err := ask[struct{}](ctx, c, wire.OpBase, base, c.times.short)
	return err
}

// Claim binds the sandbox to a lease. Again with the same lease it does
// nothing; with another it is refused.
func (c *Client) Claim(ctx context.Context, claim wire.Claim) error {
	_, err := ask[struct{}](ctx, c, wire.OpClaim, claim, c.times.short)
	return err
}

// End kills every command and ends the sandbox's first process. The answer
// comes before that has happened.
func (c *Client) End(ctx context.Context) error {
	_, err := ask[struct{}](ctx, c, wire.OpEnd, nil, c.times.short)
	return err
}

// ask makes a request that has one reply. Zero time is without bound: as long
// as the guest answers pings and ctx lasts.
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

// askChecked is ask for a reply with a rule.
func askChecked[T any](ctx context.Context, c *Client, op wire.Op, body any, within time.Duration, check func(*T) error) (T, error) {
	v, err := ask[T](ctx, c, op, body, within)
	if err == nil {
		if err = check(&v); err == nil {
			return v, nil
		}
		err = broke(op, "%v", err)
	}
	var none T
	return none, err
}

// begin opens a stream and sends the request. The stream is to be closed.
func (c *Client) begin(ctx context.Context, op wire.Op, body any) (*stream, error) {
	req, err := encode(op, body)
	if err != nil {
		return nil, err
	}
	octx, cancel := context.WithTimeoutCause(ctx, c.times.open, fmt.Errorf("no stream to the guest within %s", c.times.open))
	nc, err := c.opener.Open(octx)
	cause := context.Cause(octx)
	cancel()
	if err != nil {
		return nil, unreached(ctx, op, err, cause)
	}
	if err := c.count(ctx, nc, op); err != nil {
		_ = nc.Close()
		return nil, unreached(ctx, op, err, nil)
	}
	s := &stream{client: c, nc: nc, c: newConn(nc, op), op: op}
	s.watch(ctx)
	err = nc.SetWriteDeadline(time.Now().Add(wire.HeaderTime))
	if err == nil {
		err = s.c.WriteFrame(wire.KindRequest, req)
	}
	_ = nc.SetWriteDeadline(time.Time{}) // if it cannot, the guest has hung up
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

func encode(op wire.Op, body any) ([]byte, error) {
	r := wire.Request{Version: wire.Version, Op: op}
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return nil, &Error{Code: wire.InvalidArgument, Message: fmt.Sprintf("encode %s: %v", op, err)}
		}
		r.Body = raw
	}
	b, err := json.Marshal(r)
	if err == nil && len(b) > wire.MaxHeader {
		err = fmt.Errorf("is of %d bytes, at most %d are allowed", len(b), wire.MaxHeader)
	}
	if err != nil {
		return nil, &Error{Code: wire.InvalidArgument, Message: fmt.Sprintf("the request for %s %v", op, err)}
	}
	return b, nil
}

// unreached is the error of a request that was not sent.
func unreached(ctx context.Context, op wire.Op, err, cause error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	if cause != nil {
		return fmt.Errorf("%s: %w: %w", op, cause, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("%s: open a stream to the guest: %w", op, errors.Join(err, errdefs.ErrUnavailable))
}
