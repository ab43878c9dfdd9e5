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

// List lists the tools that the caller may call, with their schemas. profile is "" for the
// caller's own profile; operators may name another.
func (s Tools) List(ctx context.Context, profile string) ([]v1.Tool, error) {
	l, err := callJSON[v1.List[v1.Tool]](ctx, s.c, newCall(http.MethodGet, "tools").set("profile", profile))
	return l.Items, err
}

// CallOptions configure CallTool. CallTool calls the functions one at a time from its own
// goroutine. If Asked, Started or Output is set, the answer is streamed.
type CallOptions struct {
	// IdempotencyKey makes the call take effect at most once: a repeated call with the same key
	// gets the first result, and reuses the approval request of the first. Set it for calls that
	// may wait for an approval.
	IdempotencyKey string
	// Persist repeats the call with its key while the connection is cut, the server is away, or the
	// server reports that it is unavailable (for up to PersistUnavailable at a time). It stops when
	// ctx ends. If no server answers at the start, CallTool returns that error at once. Without an
	// IdempotencyKey, Persist creates one.
	Persist bool
	// Asked is called when the call waits for a decision on an approval request. With Persist it
	// may be called again for the same request.
	Asked func(v1.Approval)
	// Started is called when the call runs, with the id of its sandbox, or "" if it needs none.
	Started func(sandbox string)
	// Output is called with a command's output as it arrives; stream is "stdout" or "stderr".
	// missed is the number of bytes of that stream that were dropped before p because this client
	// was too slow. The result holds the authoritative output.
	Output func(stream string, p []byte, missed int64)
	// Away is called with the error before each repetition.
	Away func(err error)
}

// Pauses between repeated attempts.
const (
	retryPauseMin = 100 * time.Millisecond
	retryPauseMax = 2 * time.Second
)

// PersistUnavailable is how long a server may report that it is unavailable before CallTool with
// Persist returns that error.
const PersistUnavailable = 30 * time.Second

// NewKey returns a new random idempotency key.
func NewKey() string { return rand.Text() }

// Call calls a tool and waits until it ends. A failing command and a refused call are results:
// check Ending. An error means that the call could not be made, was not carried out, or that its
// end was not observed. When ctx ends, the call is cancelled and its command is killed.
func (s Tools) Call(ctx context.Context, name string, call v1.ToolCall, o CallOptions) (v1.ToolResult, error) {
	if !o.Persist {
		return s.c.callTool(ctx, name, call, o)
	}
	if o.IdempotencyKey == "" {
		o.IdempotencyKey = NewKey()
	}
	// Once a connection was made, a server that is away is waited for. The trace is needed because
	// net/http may redial within one request that has a key.
	var met atomic.Bool
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { met.Store(true) }})
	pause, since := retryPauseMin, time.Time{}
	for {
		r, err := s.c.callTool(ctx, name, call, o)
		if err == nil || context.Cause(ctx) != nil || !errdefs.IsUnavailable(err) ||
			!met.Load() && errors.Is(err, ErrNoServer) {
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
		pause = min(2*pause, retryPauseMax)
	}
}

func (c *Client) callTool(ctx context.Context, name string, call v1.ToolCall, o CallOptions) (v1.ToolResult, error) {
	k := newCall(http.MethodPost, "tools", name, "call")
	k.key = o.IdempotencyKey
	if o.Asked == nil && o.Started == nil && o.Output == nil {
		return callJSONWithBody[v1.ToolResult](ctx, c, k, call, nil)
	}
	if _, err := k.json(call); err != nil {
		return v1.ToolResult{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // closes the stream on an early return
	var result *v1.ToolResult
	err := c.readEvents(ctx, k, func(kind string, data []byte) (bool, error) {
		var e v1.ToolEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return true, fmt.Errorf("%w: invalid JSON in event: %w", ErrLost, err)
		}
		if kind == "end" && e.Result != nil {
			result = e.Result
			return true, nil
		}
		return false, o.dispatch(e)
	})
	if err != nil {
		return v1.ToolResult{}, err
	}
	if result == nil || result.Ending == "" {
		return v1.ToolResult{}, fmt.Errorf("%w: an end without an ending", ErrLost)
	}
	return *result, nil
}

// dispatch calls the function for an event. It ignores types that only newer servers send.
func (o *CallOptions) dispatch(e v1.ToolEvent) error {
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
				return fmt.Errorf("%w: invalid base64 in output: %w", ErrLost, err)
			}
		}
		o.Output(e.Type, data, e.Missed)
	}
	return nil
}

// Output returns a piece of the full output of an earlier tool call, up to 1 MiB. If the output
// is no longer kept, the error is of class NotFound.
func (s Tools) Output(ctx context.Context, id string, r OutputRequest) (v1.Output, error) {
	k := newCall(http.MethodGet, "calls", id, "output").set("stream", r.Stream).number("offset", r.Offset)
	return callJSON[v1.Output](ctx, s.c, k.number("limit", r.Limit).duration("wait_ms", r.Wait))
}

// CopyOutput copies the output of an earlier tool call to w unchanged, starting at r.Offset,
// and returns the offset after the last byte. It calls gap, which may be nil, for output that is no
// longer kept.
func (s Tools) CopyOutput(
	ctx context.Context,
	id string,
	r OutputRequest,
	gap func(from, to int64),
	w io.Writer,
) (int64, error) {
	next, left := r.Offset, r.Limit
	for {
		k := newCall(
			http.MethodGet,
			"calls",
			id,
			"output",
		).set("stream", r.Stream).
			number("offset", next).
			number("limit", left)
		before := next
		end, err := s.c.copyRaw(ctx, k.duration("wait_ms", r.Wait), "call "+id, gap, &next, w)
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

// EndSession ends a session of tool calls and destroys its sandbox. If the session has no sandbox,
// the error is of class NotFound.
func (s Tools) EndSession(ctx context.Context, name string) error {
	return s.c.doJSON(ctx, newCall(http.MethodDelete, "sessions", name), nil)
}

// CheckPolicy returns the verdict of a command policy on a command. It runs nothing.
func (s Tools) CheckPolicy(ctx context.Context, r v1.PolicyCheck) (v1.Verdict, error) {
	return callJSONWithBody[v1.Verdict](ctx, s.c, newCall(http.MethodPost, "policy", "check"), r, nil)
}

// Profiles lists the server's profiles.
func (s Tools) Profiles(ctx context.Context) ([]v1.Profile, error) {
	l, err := callJSON[v1.List[v1.Profile]](ctx, s.c, newCall(http.MethodGet, "profiles"))
	return l.Items, err
}
