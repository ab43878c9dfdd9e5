package client

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Tools lists the tools that the caller may call, with their schemas. Operators
// may name a profile; "" is the caller's own.
func (c *Client) Tools(ctx context.Context, profile string) ([]v1.Tool, error) {
	l, err := ask[v1.List[v1.Tool]](ctx, c, newCall(http.MethodGet, "tools").set("profile", profile))
	return l.Items, err
}

// CallOptions change one CallTool. The functions are called by CallTool's own
// goroutine; with any of them set, the answer is streamed.
type CallOptions struct {
	// IdempotencyKey makes the call happen at most once: the same key and call
	// again gets the first one's result, and finds the question that the first
	// one asked. A call that may wait for an approval should have one.
	IdempotencyKey string
	// Persist asks again with the key while the server is away or hands over:
	// after a cut, where nobody listens any more, and where the server says that
	// it is unavailable (but not for longer than PersistUnavailable at a time).
	// Only the end of ctx gives it up; but where nobody listens to begin with,
	// that is the answer. Without a key, it makes one.
	Persist bool
	// Asked: the call waits for an answer to this question. With Persist it may
	// be told again.
	Asked func(v1.Approval)
	// Started: it runs, in this sandbox where it needs one.
	Started func(sandbox string)
	// Output is what a command writes, as it comes; missed is how many bytes of
	// the stream before it are left out since this client was too slow. The
	// result says what counts.
	Output func(stream string, p []byte, missed int64)
	// Away is told why the server is asked again, before each time.
	Away func(err error)
}

// Persist asks again this soon at first, and this often at last.
const (
	persistMin = 100 * time.Millisecond
	persistMax = 2 * time.Second
)

// PersistUnavailable is how long a server may answer that it is unavailable
// before Persist believes that.
const PersistUnavailable = 30 * time.Second

// NewKey makes a fresh idempotency key.
func NewKey() string { return rand.Text() }

// CallTool calls a tool and waits for its end. A command that fails and a call
// that is refused are results; an error says that the call cannot be made, was
// not carried out, or that its end was not seen. When ctx ends the call is
// cancelled, and what it runs is killed.
func (c *Client) CallTool(ctx context.Context, name string, call v1.ToolCall, o CallOptions) (v1.ToolResult, error) {
	if !o.Persist {
		return c.callTool(ctx, name, call, o)
	}
	if o.IdempotencyKey == "" {
		o.IdempotencyKey = NewKey()
	}
	// A server that was there once is waited for. Its first connection may be cut
	// and dialled again within one request: net/http does that for one with a key.
	var met atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { met.Store(true) }})
	pause, since := persistMin, time.Time{}
	for {
		r, err := c.callTool(ctx, name, call, o)
		if err == nil || context.Cause(ctx) != nil || !errdefs.IsUnavailable(err) || !met.Load() && errors.Is(err, ErrNoServer) {
			return r, err
		}
		switch {
		case errors.Is(err, ErrLost), errors.Is(err, ErrNoServer):
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) > PersistUnavailable:
			return r, err
		}
		if o.Away != nil {
			o.Away(err)
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return r, context.Cause(ctx)
		}
		pause = min(2*pause, persistMax)
	}
}

func (c *Client) callTool(ctx context.Context, name string, call v1.ToolCall, o CallOptions) (v1.ToolResult, error) {
	k := newCall(http.MethodPost, "tools", name, "call")
	k.key = o.IdempotencyKey
	if o.Asked == nil && o.Started == nil && o.Output == nil {
		return post[v1.ToolResult](ctx, c, k, call, nil)
	}
	if _, err := k.json(call); err != nil {
		return v1.ToolResult{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // which cuts the stream, if it ends early
	var result *v1.ToolResult
	err := c.readEvents(ctx, k, func(kind string, data []byte) (bool, error) {
		var e v1.ToolEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return true, fmt.Errorf("%w: an event that is no JSON: %w", ErrLost, err)
		}
		if kind == "end" && e.Result != nil {
			result = e.Result
			return true, nil
		}
		return false, o.tell(e)
	})
	if err != nil {
		return v1.ToolResult{}, err
	}
	if result == nil || result.Ending == "" {
		return v1.ToolResult{}, fmt.Errorf("%w: an end without an ending", ErrLost)
	}
	return *result, nil
}

// tell hands an event on. Kinds that a newer server sends are left out.
func (o *CallOptions) tell(e v1.ToolEvent) error {
	switch {
	case e.Type == "approval" && e.Approval != nil && o.Asked != nil:
		o.Asked(*e.Approval)
	case e.Type == "started" && o.Started != nil:
		o.Started(e.SandboxID)
	case (e.Type == "stdout" || e.Type == "stderr") && o.Output != nil:
		data := []byte(e.Data)
		if e.Base64 != "" {
			var err error
			if data, err = base64.StdEncoding.DecodeString(e.Base64); err != nil {
				return fmt.Errorf("%w: output that is no base64: %w", ErrLost, err)
			}
		}
		o.Output(e.Type, data, e.Missed)
	}
	return nil
}

// CallOutput returns a piece of the whole output of an earlier call, at most
// 1 MiB, for as long as it is kept.
func (c *Client) CallOutput(ctx context.Context, id string, r OutputRequest) (v1.Output, error) {
	k := newCall(http.MethodGet, "calls", id, "output").set("stream", r.Stream).number("offset", r.Offset)
	return ask[v1.Output](ctx, c, k.number("limit", r.Limit).duration("wait_ms", r.Wait))
}

// CopyCallOutput copies what is kept of an earlier call's output to w as
// octets, from r.Offset on, and returns the offset after the last one. A gap is
// told to gap, which may be nil.
func (c *Client) CopyCallOutput(ctx context.Context, id string, r OutputRequest, gap func(from, to int64), w io.Writer) (int64, error) {
	next, left := r.Offset, r.Limit
	for {
		k := newCall(http.MethodGet, "calls", id, "output").set("stream", r.Stream).number("offset", next).number("limit", left)
		before := next
		end, err := c.octets(ctx, k.duration("wait_ms", r.Wait), "call "+id, gap, &next, w)
		if err != nil || end || next == before {
			return next, err
		}
		if r.Limit > 0 {
			if left -= next - before; left <= 0 {
				return next, nil
			}
		}
	}
}

// EndSession ends a session of the caller: its sandbox is destroyed. One that
// has none is of class NotFound.
func (c *Client) EndSession(ctx context.Context, name string) error {
	return c.answer(ctx, newCall(http.MethodDelete, "sessions", name), nil)
}

// PolicyCheck asks what a command policy says of a command. Nothing runs.
func (c *Client) PolicyCheck(ctx context.Context, r v1.PolicyCheck) (v1.Verdict, error) {
	return post[v1.Verdict](ctx, c, newCall(http.MethodPost, "policy", "check"), r, nil)
}

// Profiles lists the profiles of the server.
func (c *Client) Profiles(ctx context.Context) ([]v1.Profile, error) {
	l, err := ask[v1.List[v1.Profile]](ctx, c, newCall(http.MethodGet, "profiles"))
	return l.Items, err
}
