package sandboxed

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// webGrace is added to the web program's own timeout, so that the program can report that it was
// too slow.
const webGrace = 5 * time.Second

// Exchange makes one HTTP exchange in a new sandbox. The sandbox reaches only what the exchange
// allows and ends afterwards. Exchange does not wait for its removal.
func (c *call) Exchange(ctx context.Context, x webtool.Exchange) (web.Answer, error) {
	x.Request.Roots = c.opts.Web.Roots
	x.Request.Proxy = "127.0.0.1:" + strconv.Itoa(wire.ProxyPort)
	body, err := json.Marshal(x.Request)
	switch {
	case err != nil:
		return web.Answer{}, err
	case len(body) > web.MaxRequest:
		return web.Answer{}, usererror.Invalid("body", "makes a request of %d bytes: at most %d", len(body), web.MaxRequest)
	}
	l, end, err := c.lease(ctx, c.opts.Web.Template, x.Scope, x.Secrets)
	if err != nil {
		return web.Answer{}, err
	}
	defer end()
	return c.exchange(ctx, l, body, x.Request)
}

// exchange runs the web program in the sandbox and reads its answer.
func (c *call) exchange(ctx context.Context, l *scheduler.Lease, body []byte, r web.Request) (web.Answer, error) {
	limit := min(time.Duration(r.TimeoutMS)*time.Millisecond+webGrace, c.opts.MaxTimeout)
	most := maxAnswerBytes(r)
	out, errOut := &prefixBuffer{limit: most}, &prefixBuffer{limit: 4 << 10}
	res, err := c.opts.Sandboxes.RunProgram(ctx, l, c.ID,
		v1.Exec{Argv: []string{web.Program}, TimeoutMS: limit.Milliseconds()},
		core.Stream{Stdin: bytes.NewReader(body), Stdout: out, Stderr: errOut},
		func(w *wire.Command) {
			w.Program, w.Argv, w.OutputLimit = web.Program, nil, int64(most)
			w.MemoryBytes, w.CPUs = c.Caps.MemoryBytes, c.Caps.CPUs
		})
	if err != nil {
		return web.Answer{}, l.Explain(err)
	}
	switch runtime.Ending(res.Ending) {
	case runtime.Exited:
	case runtime.Timeout:
		f := &web.Fault{Kind: web.FaultTimeout, Message: fmt.Sprintf("no complete answer within %d ms", r.TimeoutMS)}
		return web.Answer{Fault: f}, nil
	case runtime.OOM:
		return web.Answer{}, usererror.Errorf(errdefs.ErrResourceExhausted, "the answer needs more memory than its sandbox has")
	case runtime.Cancelled:
		if ctx.Err() != nil {
			return web.Answer{}, context.Cause(ctx)
		}
		fallthrough
	case runtime.SandboxLost:
		return web.Answer{}, fmt.Errorf("the web program ended by %s: %s: %w", res.Ending, res.Detail, errdefs.ErrUnavailable)
	default:
		return unreadableAnswer("the program that converts it ended by " + res.Ending), nil
	}
	if res.ExitCode != 0 && len(out.kept) == 0 {
		// Some parser libraries abort the program on malformed input.
		c.opts.Log.Info("web program failed without an answer", "sandbox", l.ID, "code", res.ExitCode,
			"said", oneLine(string(errOut.kept)))
		return unreadableAnswer("the program that converts it failed"), nil
	}
	a, err := readAnswer(out.kept, r)
	if err != nil {
		c.opts.Log.Warn("web program wrote an invalid answer", "sandbox", l.ID, "code", res.ExitCode,
			"said", oneLine(string(errOut.kept)), "error", err)
		return unreadableAnswer("the program that converts it gave no usable answer"), nil
	}
	return a, nil
}

// unreadableAnswer returns the answer for a web program that gave none.
func unreadableAnswer(why string) web.Answer {
	return web.Answer{Fault: &web.Fault{Kind: web.FaultContent, Message: "answer cannot be read: " + why}}
}

// prefixBuffer keeps the first limit bytes that are written to it.
type prefixBuffer struct {
	kept  []byte
	limit int
}

// Write implements io.Writer and never fails.
func (b *prefixBuffer) Write(p []byte) (int, error) {
	b.kept = append(b.kept, p[:min(len(p), b.limit-len(b.kept))]...)
	return len(p), nil
}
