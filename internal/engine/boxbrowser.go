package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/browser"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// BrowserOptions are what browser.open needs beside the gateway.
type BrowserOptions struct {
	Host tool.BrowserHost
	// Template is that of the sandboxes in which browsers run.
	Template string
	// Roots are authorities, in PEM, that hosts are known by beside the browser's
	// own; "" are none.
	Roots string
}

const (
	// browserPort is where the browser of the image listens, browserProgram what
	// tells it of authorities (docker/browser/browser.sh).
	browserPort    = 9222
	browserProgram = "/usr/local/lib/orchestrator/browser"
	// installRootsTimeout bounds the latter, hearTime how long the gateway's word on a host
	// is waited for.
	installRootsTimeout = 20 * time.Second
	verdictTimeout      = 300 * time.Millisecond
	// maxBlocked is how many refusals of the gateway an answer has.
	maxBlocked = 20
)

// BrowserHost is the service's.
func (b *box) BrowserHost() *tool.BrowserHost {
	if o := b.e.opts.Browser; o != nil {
		return &o.Host
	}
	return &tool.BrowserHost{Open: &tool.Reached{}} // nothing can be reached
}

// Browse opens one page: a sandbox with a browser is leased, gets what the visit
// may reach and nothing else, and ends with it. The answer does not wait for
// its destruction.
func (b *box) Browse(ctx context.Context, v tool.Visit) (tool.Sight, error) {
	o := b.e.opts.Browser
	if o == nil {
		return tool.Sight{}, usererror.Errorf(errdefs.ErrFailedPrecondition, "this service has no browser")
	}
	if _, ok := b.e.sched.Template(o.Template); !ok {
		return tool.Sight{}, usererror.Errorf(errdefs.ErrFailedPrecondition,
			"there is no browser here: no template %q is ready (browser.template in the service's configuration; docs/browser.md says how to make one); mode simple needs none", o.Template)
	}
	egress := &toolEgress{Rules: v.Reach.Rules}
	if v.Ceiling != nil {
		egress.Ceiling = v.Ceiling.Compiled
	}
	l, err := b.e.acquire(ctx, b.call, v1.SandboxRequest{Template: o.Template}, acquisition{oneShot: true, private: true, egress: egress})
	if err != nil {
		return tool.Sight{}, err
	}
	defer func() {
		if err := b.e.sched.End(ctx, l, scheduler.Finished, false); err != nil {
			// The page was opened: that is the answer. The next start ends the rest.
			b.e.log.Error("lease not ended", "sandbox", l.ID, "error", err)
		}
	}()
	b.notePlacement(l)
	if o.Roots != "" {
		if err := b.installRoots(ctx, l, o.Roots); err != nil {
			return tool.Sight{}, err
		}
	}
	got, err := browser.Open(ctx, func(ctx context.Context) (net.Conn, error) { return b.e.dial(ctx, l, browserPort) }, v.Request)
	if err != nil {
		return tool.Sight{}, b.browserFailed(ctx, l, v, got, err)
	}
	return tool.Sight{Result: got, Isolation: b.isolation(l), Blocked: b.refusedHosts(l)}, nil
}

// installRoots tells the browser of authorities, before it looks at a certificate.
func (b *box) installRoots(ctx context.Context, l *scheduler.Lease, roots string) error {
	r, err := b.e.exec(ctx, l, b.id, v1.Exec{Argv: []string{browserProgram, "trust"}, Stdin: roots, TimeoutMS: installRootsTimeout.Milliseconds()}, Stream{}, nil)
	if err == nil && (r.Ending != string(runtime.Exited) || r.ExitCode != 0) {
		err = fmt.Errorf("authorities for the browser: %s, exit code %d: %q: %w", r.Ending, r.ExitCode, oneLine(r.Stderr), errdefs.ErrUnavailable)
	}
	return err
}

// browserFailed explains a page that was not had: by the gateway's own words,
// which a browser does not pass on, or by how the browser ended.
func (b *box) browserFailed(ctx context.Context, l *scheduler.Lease, v tool.Visit, got browser.Result, err error) error {
	if _, none := errors.AsType[*PortError](err); none {
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "no browser listens in sandboxes of template %q, on port %d: see its warm-up (docs/browser.md)", l.Template, browserPort)
	}
	f, ok := errors.AsType[*browser.Fault](err)
	if !ok {
		return b.e.endedOr(l, err)
	}
	switch f.Kind {
	case web.FaultDenied:
		at := v.Request.URL
		if got.Refused != "" {
			at = got.Refused
		}
		if c := b.gatewayVerdict(l, at); c != nil && c.Allowed {
			return &browser.Fault{Kind: web.FaultConnect, Message: c.Reason}
		} else if c != nil {
			return &browser.Fault{Kind: web.FaultDenied, Message: c.Reason}
		}
	case browser.FaultCrashed, browser.FaultBrowser:
		if b.outOfMemory(ctx, l) {
			return &browser.Fault{Kind: browser.FaultCrashed, Message: "the browser ran out of memory: the page needs more than the limits.memory of its template"}
		}
	}
	return f
}

// gatewayVerdict is the gateway's last word on a host, nil if it has none. It is said
// when the connection has ended, which may be a moment after the browser knows.
func (b *box) gatewayVerdict(l *scheduler.Lease, address string) *netpolicy.Connection {
	u, err := url.Parse(address)
	o, _ := b.e.egress.find(l.ID)
	if err != nil || o == nil {
		return nil
	}
	port := map[string]int{"http": 80, "https": 443}[u.Scheme]
	if n, err := strconv.Atoi(u.Port()); err == nil {
		port = n
	}
	for end := time.Now().Add(verdictTimeout); ; time.Sleep(10 * time.Millisecond) {
		recent := o.session.State().Recent
		for i := len(recent) - 1; i >= 0; i-- {
			if c := recent[i]; c.Port == port && strings.EqualFold(c.Host, u.Hostname()) {
				return &c
			}
		}
		if time.Now().After(end) {
			return nil
		}
	}
}

// refusedHosts lists what the gateway refused, each host once.
func (b *box) refusedHosts(l *scheduler.Lease) []tool.Blocked {
	o, _ := b.e.egress.find(l.ID)
	if o == nil {
		return nil
	}
	var out []tool.Blocked
	seen := map[string]bool{}
	for _, c := range o.session.State().Recent {
		at := net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
		if c.Allowed || c.Host == "" || seen[at] || len(out) == maxBlocked {
			continue
		}
		seen[at] = true
		out = append(out, tool.Blocked{Host: c.Host, Port: c.Port, Reason: c.Reason})
	}
	return out
}

// outOfMemory says whether a warm-up's command, the browser, ended so.
func (b *box) outOfMemory(ctx context.Context, l *scheduler.Lease) bool {
	use, err := l.Enter(ctx)
	if err != nil {
		return false
	}
	defer use.Leave()
	shells, err := use.Shells(use.Ctx)
	if err != nil {
		return false
	}
	for _, s := range shells {
		if s.Result != nil && s.Result.Ending == runtime.OOM {
			return true
		}
	}
	return false
}

// isolation says what is around a browser.
func (b *box) isolation(l *scheduler.Lease) string {
	t, _ := b.e.sched.Template(l.Template)
	return fmt.Sprintf("class %s: a sandbox of its own, destroyed afterwards, without a network interface (everything goes through the gateway and its rules), seccomp, no capabilities, uid %d; "+
		"Chromium's own sandbox is off, since it needs user namespaces or a setuid helper, and there are neither", t.Spec.Class.OrDefault(), runtime.CommandUID)
}
