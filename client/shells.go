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

// StartShell starts a background command.
func (c *Client) StartShell(ctx context.Context, sandbox string, r v1.ShellRequest, opts ...Option) (v1.Shell, error) {
	return post[v1.Shell](ctx, c, newCall(http.MethodPost, "sandboxes", sandbox, "shells"), r, opts)
}

// Shells lists a sandbox's shells, oldest first.
func (c *Client) Shells(ctx context.Context, sandbox string) ([]v1.Shell, error) {
	l, err := ask[v1.List[v1.Shell]](ctx, c, newCall(http.MethodGet, "sandboxes", sandbox, "shells"))
	return l.Items, err
}

// Shell describes one shell, also when its sandbox is gone.
func (c *Client) Shell(ctx context.Context, id string) (v1.Shell, error) {
	return ask[v1.Shell](ctx, c, newCall(http.MethodGet, "shells", id))
}

// KillShell ends a shell: TERM, the grace time, KILL. Nothing of it lives when
// it returns. With forget its record and output are dropped.
func (c *Client) KillShell(ctx context.Context, id string, grace time.Duration, forget bool) (v1.Shell, error) {
	return ask[v1.Shell](ctx, c, newCall(http.MethodDelete, "shells", id).duration("grace_ms", grace).flag("forget", forget))
}

// SignalShell sends a signal, 1 to 64, to every process of a shell.
func (c *Client) SignalShell(ctx context.Context, id string, signal int) error {
	return c.answer(ctx, newCall(http.MethodPost, "shells", id, "signal").number("signal", int64(signal)), nil)
}

// Input sends r to a shell's stdin until r ends, and then closes it if asked.
func (c *Client) Input(ctx context.Context, id string, r io.Reader, closeStdin bool) error {
	return c.answer(ctx, newCall(http.MethodPost, "shells", id, "input").flag("close", closeStdin).octets(r, -1), nil)
}

// OutputRequest asks for a piece of a shell's output.
type OutputRequest struct {
	Stream string // "stdout" (the default) or "stderr"
	Offset int64
	Limit  int64
	// Wait is how long to wait for a first byte, at most a minute.
	Wait time.Duration
}

// Output returns a piece of a shell's output, at most 1 MiB.
func (c *Client) Output(ctx context.Context, id string, r OutputRequest) (v1.Output, error) {
	k := newCall(http.MethodGet, "shells", id, "output").set("stream", r.Stream).number("offset", r.Offset)
	return ask[v1.Output](ctx, c, k.number("limit", r.Limit).duration("wait_ms", r.Wait))
}

// FollowRequest says what to follow.
type FollowRequest struct {
	Stream string // "stdout" (the default) or "stderr"
	// Offset is the first byte that is wanted.
	Offset int64
	// Gap is called where bytes are no longer kept: those from offset `from`
	// to before `to` are missing. Nil ignores gaps.
	Gap func(from, to int64)
}

// Follow asks again after a cut this often: quickly at first, since a server
// that hands over is back within a second.
const (
	followMin = 50 * time.Millisecond
	followMax = 2 * time.Second
)

// Follow reads pieces of this size, and waits so long for the first byte of
// one: shorter than what proxies take for a dead connection.
const (
	followPiece = 1 << 20
	followWait  = 20 * time.Second
)

// Follow copies a shell's output to w as it comes, until the stream's end, and
// returns the offset after the last byte written. A connection that is cut and
// a server that is away are asked again, from where it stopped, for as long as
// ctx lives: only the end of ctx, w's own error, what the server refuses, and
// no server from the start end it early. No byte is written twice.
//
// It asks piece by piece: only the offset of the next question tells the shell
// what was read, so a lossless shell drops nothing that was still on the way.
func (c *Client) Follow(ctx context.Context, id string, r FollowRequest, w io.Writer) (int64, error) {
	next, pause := r.Offset, followMin
	var err error
	for answered := false; ; {
		before := next
		next, err = c.CopyOutput(ctx, id, OutputRequest{Stream: r.Stream, Offset: next, Limit: followPiece, Wait: followWait}, r.Gap, w)
		answered = answered || !errors.Is(err, ErrNoServer)
		if err == nil && next == before {
			var end bool
			if end, err = c.ended(ctx, id, r.Stream, next); end {
				return next, nil
			}
		}
		if next > before {
			pause = followMin
		}
		if err == nil {
			continue
		}
		if _, own := errors.AsType[*errWriter](err); own || !errdefs.IsUnavailable(err) || context.Cause(ctx) != nil {
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
		pause = min(2*pause, followMax)
	}
}

// ended says whether a stream has ended at an offset. It waits a little for a
// first byte, so that a server that ends answers early is not asked without
// pause.
func (c *Client) ended(ctx context.Context, id, stream string, offset int64) (bool, error) {
	out, err := c.Output(ctx, id, OutputRequest{Stream: stream, Offset: offset, Limit: 1, Wait: followMin})
	return err == nil && out.EOF && out.NextOffset == offset, err
}

// CopyOutput copies what is there of a shell's output to w as octets, r.Limit
// bytes at most, and returns the offset after the last one. It ends before a
// gap that is not at the beginning; one at the beginning is told to gap.
func (c *Client) CopyOutput(ctx context.Context, id string, r OutputRequest, gap func(from, to int64), w io.Writer) (int64, error) {
	k := newCall(http.MethodGet, "shells", id, "output").set("stream", r.Stream).number("offset", r.Offset)
	next := r.Offset
	_, err := c.octets(ctx, k.number("limit", r.Limit).duration("wait_ms", r.Wait), "shell "+id, gap, &next, w)
	return next, err
}

// octets copies a raw answer; what names whose output it is. end says that the
// server knows of no more.
func (c *Client) octets(ctx context.Context, k *call, what string, gap func(from, to int64), next *int64, w io.Writer) (end bool, err error) {
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
				return false, &errWriter{"output", werr}
			}
		}
		if err == io.EOF {
			return resp.Header.Get("Orchestrator-End") == "true", nil
		}
		if err != nil {
			return false, c.lost(ctx, err)
		}
	}
}
