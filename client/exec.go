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

// framesType is the answer form of a streamed command; see readFrames.
const framesType = "application/vnd.orchestrator.frames"

// Exec runs one command in a leased sandbox and waits for its end. A command
// that fails is a result; an error means that it did not run, or that its end
// was not seen.
func (c *Client) Exec(ctx context.Context, sandbox string, x v1.Exec, opts ...Option) (v1.ExecResult, error) {
	return post[v1.ExecResult](ctx, c, newCall(http.MethodPost, "sandboxes", sandbox, "exec"), x, opts)
}

// Run leases a sandbox, runs one command in it and has it destroyed.
func (c *Client) Run(ctx context.Context, r v1.Run, opts ...Option) (v1.ExecResult, error) {
	return post[v1.ExecResult](ctx, c, newCall(http.MethodPost, "run"), r, opts)
}

// Streams carry a command's input and output while it runs.
type Streams struct {
	// Stdin is sent as the command reads it; nil is empty input. A Read that
	// waits when the command ends is not interrupted: its bytes are lost.
	Stdin io.Reader
	// Stdout and Stderr get the output as it is; nil discards it.
	Stdout, Stderr io.Writer
	// Started is called once the command runs, before any output.
	Started func(id string)
}

// ExecStream is Exec with live streams: the result holds no output of its own.
// If ctx ends, or a writer fails, the command is killed.
func (c *Client) ExecStream(ctx context.Context, sandbox string, x v1.Exec, s Streams, opts ...Option) (v1.ExecResult, error) {
	return c.stream(ctx, newCall(http.MethodPost, "sandboxes", sandbox, "exec").with(opts), x, s)
}

// RunStream is Run with live streams.
func (c *Client) RunStream(ctx context.Context, r v1.Run, s Streams, opts ...Option) (v1.ExecResult, error) {
	return c.stream(ctx, newCall(http.MethodPost, "run").with(opts), r, s)
}

// maxHeader bounds a request that travels as a header because the body is the
// command's input; servers take headers of 256 KiB.
const maxHeader = 180 << 10

func (c *Client) stream(ctx context.Context, k *call, request any, s Streams) (v1.ExecResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // which cuts the stream and so kills what runs, if it ends early
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
		k.octets(s.Stdin, -1)
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
