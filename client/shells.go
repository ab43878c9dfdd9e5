package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// StartShell starts a background command in a leased sandbox.
func (c *Client) StartShell(ctx context.Context, sandbox string, r v1.ShellRequest, opts ...Option) (v1.Shell, error) {
	return callJSONWithBody[v1.Shell](ctx, c, newCall(http.MethodPost, "sandboxes", sandbox, "shells"), r, opts)
}

// Shells lists a sandbox's background commands, oldest first.
func (c *Client) Shells(ctx context.Context, sandbox string) ([]v1.Shell, error) {
	l, err := callJSON[v1.List[v1.Shell]](ctx, c, newCall(http.MethodGet, "sandboxes", sandbox, "shells"))
	return l.Items, err
}

// Shell returns one background command. It also works after the sandbox has ended.
func (c *Client) Shell(ctx context.Context, id string) (v1.Shell, error) {
	return callJSON[v1.Shell](ctx, c, newCall(http.MethodGet, "shells", id))
}

// KillShell sends TERM to a background command, waits up to grace, and then sends KILL. All its
// processes have exited when KillShell returns. If forget is set, its record and output are
// deleted.
func (c *Client) KillShell(ctx context.Context, id string, grace time.Duration, forget bool) (v1.Shell, error) {
	return callJSON[v1.Shell](
		ctx,
		c,
		newCall(http.MethodDelete, "shells", id).duration("grace_ms", grace).flag("forget", forget),
	)
}

// SignalShell sends a signal, 1 to 64, to every process of a background command.
func (c *Client) SignalShell(ctx context.Context, id string, signal int) error {
	return c.doJSON(ctx, newCall(http.MethodPost, "shells", id, "signal").number("signal", int64(signal)), nil)
}

// Input copies r to a background command's stdin until r ends. If closeStdin is set, it then closes
// stdin. It does not close r.
func (c *Client) Input(ctx context.Context, id string, r io.Reader, closeStdin bool) error {
	return c.doJSON(ctx, newCall(http.MethodPost, "shells", id, "input").flag("close", closeStdin).streamBody(r, -1), nil)
}

// OutputRequest selects a piece of a background command's output. Offset and Limit are bytes; a
// Limit of 0 takes the server's default.
type OutputRequest struct {
	Stream string // "stdout" (the default) or "stderr"
	Offset int64
	Limit  int64
	// Wait is how long to wait for the first byte, up to one minute.
	Wait time.Duration
}

// Output returns a piece of a background command's output, up to 1 MiB.
func (c *Client) Output(ctx context.Context, id string, r OutputRequest) (v1.Output, error) {
	k := newCall(http.MethodGet, "shells", id, "output").set("stream", r.Stream).number("offset", r.Offset)
	return callJSON[v1.Output](ctx, c, k.number("limit", r.Limit).duration("wait_ms", r.Wait))
}

// FollowRequest selects the output that Follow copies.
type FollowRequest struct {
	Stream string // "stdout" (the default) or "stderr"
	// Offset is the first byte to copy.
	Offset int64
	// Gap is called if the bytes from offset `from` up to but excluding `to` are no longer kept. If
	// nil, gaps are ignored.
	Gap func(from, to int64)
}

// Pauses between Follow's attempts to reconnect. They start short because a server that restarts is
// back within a second.
const (
	followPauseMin = 50 * time.Millisecond
	followPauseMax = 2 * time.Second
)

// followPiece is how many bytes Follow requests at a time. followWait is how long it waits for the
// first of them: shorter than the time after which proxies close an idle connection.
const (
	followPiece = 1 << 20
	followWait  = 20 * time.Second
)

// Follow copies a background command's output to w until the stream ends, and returns the offset
// after the last byte written. No byte is written twice.
//
// If the connection is cut or the server is away, Follow reconnects and continues at that offset.
// It returns early only if ctx ends, w fails, the server refuses the request, or no server answers
// at the start.
//
// Follow requests one piece at a time. The offset of the next request acknowledges the previous
// piece, so a lossless command loses no output that is still in transit.
func (c *Client) Follow(ctx context.Context, id string, r FollowRequest, w io.Writer) (int64, error) {
	next, pause := r.Offset, followPauseMin
	var err error
	for answered := false; ; {
		before := next
		next, err = c.CopyOutput(
			ctx,
			id,
			OutputRequest{Stream: r.Stream, Offset: next, Limit: followPiece, Wait: followWait},
			r.Gap,
			w,
		)
		answered = answered || !errors.Is(err, ErrNoServer)
		if err == nil && next == before {
			var end bool
			if end, err = c.streamEnded(ctx, id, r.Stream, next); end {
				return next, nil
			}
		}
		if next > before {
			pause = followPauseMin
		}
		if err == nil {
			continue
		}
		if _, own := errors.AsType[*writerError](err); own || !errdefs.IsUnavailable(err) || context.Cause(ctx) != nil {
			return next, err
		}
		if !answered && errors.Is(err, ErrNoServer) {
			return next, err
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return next, context.Cause(ctx)
		}
		pause = min(2*pause, followPauseMax)
	}
}

// streamEnded reports whether a stream ends at offset. It waits briefly for a first byte, so that
// Follow does not poll a server that ends its answers early.
func (c *Client) streamEnded(ctx context.Context, id, stream string, offset int64) (bool, error) {
	out, err := c.Output(ctx, id, OutputRequest{Stream: stream, Offset: offset, Limit: 1, Wait: followPauseMin})
	return err == nil && out.EOF && out.NextOffset == offset, err
}

// CopyOutput copies the available output of a background command to w unchanged, up to r.Limit
// bytes, and returns the offset after the last one. If output is missing at the beginning, it calls
// gap, which may be nil. It stops before a later gap.
func (c *Client) CopyOutput(
	ctx context.Context,
	id string,
	r OutputRequest,
	gap func(from, to int64),
	w io.Writer,
) (int64, error) {
	k := newCall(http.MethodGet, "shells", id, "output").set("stream", r.Stream).number("offset", r.Offset)
	next := r.Offset
	_, err := c.copyRaw(ctx, k.number("limit", r.Limit).duration("wait_ms", r.Wait), "shell "+id, gap, &next, w)
	return next, err
}

// copyRaw copies a raw answer to w and advances next. what names the source in error messages. end
// reports that the server expects no more output.
func (c *Client) copyRaw(
	ctx context.Context,
	k *call,
	what string,
	gap func(from, to int64),
	next *int64,
	w io.Writer,
) (end bool, err error) {
	k.accept = "application/octet-stream"
	resp, err := c.send(ctx, k)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	first, err := strconv.ParseInt(resp.Header.Get("Orchestrator-Offset"), 10, 64)
	if err != nil || first < *next {
		return false, fmt.Errorf("output of %s begins at %q, and %d was asked for: %w",
			what, resp.Header.Get("Orchestrator-Offset"), *next, errdefs.ErrInternal)
	}
	if first > *next {
		if gap != nil {
			gap(*next, first)
		}
		*next = first
	}
	buf := make([]byte, dataBuffer)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			m, werr := w.Write(buf[:n])
			*next += int64(m)
			if werr != nil {
				return false, &writerError{"output", werr}
			}
		}
		if err == io.EOF {
			return resp.Header.Get("Orchestrator-End") == "true", nil
		}
		if err != nil {
			return false, c.connectionError(ctx, err)
		}
	}
}
