package client

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// framesType is the media type of a streamed command's answer; see readFrames.
const framesType = "application/vnd.orchestrator.frames"

// Exec runs a command in a leased sandbox and waits until it ends. A command that fails is a
// result, not an error: check Ending and ExitCode. An error means that the command did not run, or
// that its end was not observed.
func (c *Client) Exec(ctx context.Context, sandbox string, x v1.Exec, opts ...Option) (v1.ExecResult, error) {
	return callJSONWithBody[v1.ExecResult](ctx, c, newCall(http.MethodPost, "sandboxes", sandbox, "exec"), x, opts)
}

// Run leases a sandbox, runs a command in it, and destroys the sandbox. Results and errors are as
// for Exec.
func (c *Client) Run(ctx context.Context, r v1.Run, opts ...Option) (v1.ExecResult, error) {
	return callJSONWithBody[v1.ExecResult](ctx, c, newCall(http.MethodPost, "run"), r, opts)
}

// Streams connect to a command's input and output while it runs. Stdin is read by another
// goroutine; Stdout, Stderr and Started are used by the caller's goroutine.
type Streams struct {
	// Stdin is the command's input; nil is empty input. It is read as fast as the command takes it.
	// A Read that blocks when the command ends is not interrupted, and the bytes that it returns
	// are lost.
	Stdin io.Reader
	// Stdout and Stderr receive the output unchanged; nil discards it.
	Stdout, Stderr io.Writer
	// Started is called with the command's id once it runs, before any output is written.
	Started func(id string)
}

// ExecStream is like Exec but copies input and output while the command runs, so the result's
// Stdout and Stderr are empty. If ctx ends or a writer fails, the command is killed.
func (c *Client) ExecStream(
	ctx context.Context,
	sandbox string,
	x v1.Exec,
	s Streams,
	opts ...Option,
) (v1.ExecResult, error) {
	return c.stream(ctx, newCall(http.MethodPost, "sandboxes", sandbox, "exec").with(opts), x, s)
}

// RunStream is like Run with live streams; see ExecStream.
func (c *Client) RunStream(ctx context.Context, r v1.Run, s Streams, opts ...Option) (v1.ExecResult, error) {
	return c.stream(ctx, newCall(http.MethodPost, "run").with(opts), r, s)
}

// maxHeader bounds a JSON request that is sent as a header because the body carries the command's
// input. Servers accept headers of 64 KiB, and base64 takes a third more than the request.
const maxHeader = 45 << 10

func (c *Client) stream(ctx context.Context, k *call, request any, s Streams) (v1.ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // closes the stream on an early return, which kills the command
	k.accept = framesType
	if s.Stdin == nil {
		if _, err := k.json(request); err != nil {
			return v1.ExecResult{}, err
		}
	} else {
		b, err := json.Marshal(request)
		if err != nil {
			return v1.ExecResult{}, fmt.Errorf("encode request: %w", err)
		}
		if len(b) > maxHeader {
			return v1.ExecResult{}, fmt.Errorf("the request is %d bytes long: at most %d beside a stream of input", len(b), maxHeader)
		}
		k.header.Set("Orchestrator-Exec", base64.URLEncoding.EncodeToString(b))
		k.streamBody(s.Stdin, -1)
	}
	resp, err := c.send(ctx, k)
	if err != nil {
		return v1.ExecResult{}, err
	}
	defer resp.Body.Close()
	if got := resp.Header.Get("Content-Type"); got != framesType {
		return v1.ExecResult{}, fmt.Errorf("%w: the answer is %q and not a stream of frames", ErrLost, got)
	}
	return c.readFrames(ctx, resp.Body, s)
}
