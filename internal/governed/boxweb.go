package governed

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
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// WebOptions configures the web tools.
type WebOptions struct {
	// Host is shared by all calls, except for Caller and Owner.
	Host tool.WebHost
	// Template names the template of web sandboxes, or "" for the default template.
	Template string
	// Roots holds root certificates in PEM, or "" for those of the image.
	Roots string
}

// webGrace is added to the web program's own timeout, so that the program can report that it was
// too slow.
const webGrace = 5 * time.Second

// WebHost returns the service's web settings for this caller and its rights.
func (b *box) WebHost() *tool.WebHost {
	var h tool.WebHost
	if o := b.s.opts.Web; o != nil {
		h = o.Host
	} else { // without web settings, allow nothing
		h = tool.WebHost{Fetch: &tool.Reached{}, Request: &tool.Reached{}, Cache: cache.New(0, 0)}
	}
	h.Caller = b.principal.Caller
	h.Owner = fmt.Sprintf("%s\x00%s\x00%s\x00%d", b.principal.Caller, b.principal.Token, b.profile, b.principal.Trust)
	return &h
}

// Web makes one HTTP exchange in a new sandbox. The sandbox reaches only what the exchange allows
// and ends afterwards. Web does not wait for its removal.
func (b *box) Web(ctx context.Context, x tool.Exchange) (web.Answer, error) {
	var none web.Answer
	request := v1.SandboxRequest{}
	if o := b.s.opts.Web; o != nil {
		request.Template, x.Request.Roots = o.Template, o.Roots
	}
	x.Request.Proxy = "127.0.0.1:" + strconv.Itoa(wire.ProxyPort)
	body, err := json.Marshal(x.Request)
	switch {
	case err != nil:
		return none, err
	case len(body) > web.MaxRequest:
		return none, usererror.Invalid("body", "makes a request of %d bytes: at most %d", len(body), web.MaxRequest)
	}
	egress := &core.Egress{Rules: x.Reach.Rules, Secrets: x.Secrets}
	if x.Ceiling != nil {
		egress.Ceiling = x.Ceiling.Compiled
	}
	l, err := b.s.opts.Sandboxes.Acquire(ctx, b.principal, request, core.Acquisition{OneShot: true, Private: true, Egress: egress})
	if err != nil {
		return none, err
	}
	defer func() {
		if err := b.s.opts.Scheduler.End(ctx, l, scheduler.Finished, false); err != nil {
			// The exchange was made, so return the answer. The next start ends the lease.
			b.s.log.Error("failed to end a lease", "sandbox", l.ID, "error", err)
		}
	}()
	b.notePlacement(l)
	return b.exchange(ctx, l, body, x.Request)
}

// exchange runs the web program in the sandbox and reads its answer.
func (b *box) exchange(ctx context.Context, l *scheduler.Lease, body []byte, r web.Request) (web.Answer, error) {
	limit := min(time.Duration(r.TimeoutMS)*time.Millisecond+webGrace, b.s.opts.MaxTimeout)
	most := maxAnswerBytes(r)
	out, errOut := &prefixBuffer{limit: most}, &prefixBuffer{limit: 4 << 10}
	res, err := b.s.opts.Sandboxes.RunProgram(ctx, l, b.id,
		v1.Exec{Argv: []string{web.Program}, TimeoutMS: limit.Milliseconds()},
		core.Stream{Stdin: bytes.NewReader(body), Stdout: out, Stderr: errOut},
		func(c *wire.Command) {
			c.Program, c.Argv, c.OutputLimit = web.Program, nil, int64(most)
			c.MemoryBytes, c.CPUs = b.caps.MemoryBytes, b.caps.CPUs
		})
	if err != nil {
		return web.Answer{}, l.Explain(err)
	}
	switch runtime.Ending(res.Ending) {
	case runtime.Exited:
	case runtime.Timeout:
		return web.Answer{Fault: &web.Fault{Kind: web.FaultTimeout, Message: fmt.Sprintf("no complete answer within %d ms", r.TimeoutMS)}}, nil
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
		b.s.log.Info("web program failed without an answer", "sandbox", l.ID, "code", res.ExitCode, "said", oneLine(string(errOut.kept)))
		return unreadableAnswer("the program that converts it failed"), nil
	}
	a, err := readAnswer(out.kept, r)
	if err != nil {
		b.s.log.Warn("web program wrote an invalid answer", "sandbox", l.ID, "code", res.ExitCode, "said", oneLine(string(errOut.kept)), "error", err)
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
func (c *prefixBuffer) Write(p []byte) (int, error) {
	c.kept = append(c.kept, p[:min(len(p), c.limit-len(c.kept))]...)
	return len(p), nil
}
