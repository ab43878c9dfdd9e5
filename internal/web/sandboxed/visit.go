package sandboxed

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
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/browser"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// browserPort is the port on which the image's browser listens. browserProgram adds root
	// certificates to the browser (docker/browser/browser.sh).
	browserPort    = 9222
	browserProgram = "/usr/local/lib/orchestrator/browser"
	// installRootsTimeout bounds the installation of root certificates. verdictTimeout bounds the
	// wait for the gateway's verdict on a host.
	installRootsTimeout = 20 * time.Second
	verdictTimeout      = 300 * time.Millisecond
	// maxBlocked bounds the refused connections in an answer.
	maxBlocked = 20
)

// Open opens one page in a new browser sandbox. The sandbox reaches only what the visit allows and
// ends afterwards. Open does not wait for its removal.
func (c *call) Open(ctx context.Context, v webtool.Visit) (webtool.Sight, error) {
	o := c.opts.Browser
	if o == nil {
		return webtool.Sight{}, usererror.Errorf(errdefs.ErrFailedPrecondition, "browser is not configured on this service")
	}
	if _, ok := c.opts.Scheduler.Template(o.Template); !ok {
		return webtool.Sight{}, usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"browser is not available: template %q is not ready (browser.template in the service's configuration; "+
				"see docs/browser.md): use mode simple",
			o.Template,
		)
	}
	l, end, err := c.lease(ctx, o.Template, v.Scope, nil)
	if err != nil {
		return webtool.Sight{}, err
	}
	defer end()
	if o.Roots != "" {
		if err := c.installRoots(ctx, l, o.Roots); err != nil {
			return webtool.Sight{}, err
		}
	}
	dial := func(ctx context.Context) (net.Conn, error) { return l.Dial(ctx, browserPort) }
	got, err := browser.Open(ctx, dial, v.Request)
	if err != nil {
		return webtool.Sight{}, c.browserFailed(ctx, l, v, got, err)
	}
	return webtool.Sight{Result: got, Isolation: c.isolation(l), Blocked: c.refusedHosts(l)}, nil
}

// installRoots adds root certificates to the browser. It must run before the browser verifies a
// certificate.
func (c *call) installRoots(ctx context.Context, l *scheduler.Lease, roots string) error {
	r, err := c.opts.Sandboxes.RunProgram(
		ctx,
		l,
		c.ID,
		v1.Exec{Argv: []string{browserProgram, "trust"}, Stdin: roots, TimeoutMS: installRootsTimeout.Milliseconds()},
		core.Stream{},
		nil,
	)
	if err == nil && (r.Ending != string(runtime.Exited) || r.ExitCode != 0) {
		err = fmt.Errorf(
			"install root certificates in the browser: %s, exit code %d: %q: %w",
			r.Ending,
			r.ExitCode,
			oneLine(r.Stderr),
			errdefs.ErrUnavailable,
		)
	}
	return err
}

// browserFailed explains why a page could not be opened. It uses the gateway's reason, which the
// browser does not report, or the way the browser ended.
func (c *call) browserFailed(
	ctx context.Context,
	l *scheduler.Lease,
	v webtool.Visit,
	got browser.Result,
	err error,
) error {
	if _, none := errors.AsType[*core.PortError](err); none {
		return usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"no browser listens in sandboxes of template %q, on port %d: see its warm-up (docs/browser.md)",
			l.Template,
			browserPort,
		)
	}
	f, ok := errors.AsType[*browser.Fault](err)
	if !ok {
		return l.Explain(err)
	}
	switch f.Kind {
	case web.FaultDenied:
		at := v.Request.URL
		if got.Refused != "" {
			at = got.Refused
		}
		if seen := c.gatewayVerdict(l, at); seen != nil && seen.Allowed {
			return &browser.Fault{Kind: web.FaultConnect, Message: seen.Reason}
		} else if seen != nil {
			return &browser.Fault{Kind: web.FaultDenied, Message: seen.Reason}
		}
	case browser.FaultCrashed, browser.FaultBrowser:
		if c.outOfMemory(ctx, l) {
			return &browser.Fault{
				Kind:    browser.FaultCrashed,
				Message: "the browser ran out of memory: the page needs more than the limits.memory of its template",
			}
		}
	}
	return f
}

// gatewayVerdict returns the latest connection of the sandbox to the host of address, or nil. The
// gateway reports a connection when it ends, which can be after the browser has failed, so it polls
// for up to verdictTimeout.
func (c *call) gatewayVerdict(l *scheduler.Lease, address string) *netpolicy.Connection {
	u, err := url.Parse(address)
	connections := c.opts.Gateway.Connections(l.ID)
	if err != nil || connections == nil {
		return nil
	}
	port := map[string]int{"http": 80, "https": 443}[u.Scheme]
	if n, err := strconv.Atoi(u.Port()); err == nil {
		port = n
	}
	for end := time.Now().Add(verdictTimeout); ; time.Sleep(10 * time.Millisecond) {
		recent := connections()
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

// refusedHosts lists the hosts that the gateway refused, each once, at most maxBlocked.
func (c *call) refusedHosts(l *scheduler.Lease) []webtool.Blocked {
	connections := c.opts.Gateway.Connections(l.ID)
	if connections == nil {
		return nil
	}
	var out []webtool.Blocked
	seen := map[string]bool{}
	for _, c := range connections() {
		at := net.JoinHostPort(c.Host, strconv.Itoa(c.Port))
		if c.Allowed || c.Host == "" || seen[at] || len(out) == maxBlocked {
			continue
		}
		seen[at] = true
		out = append(out, webtool.Blocked{Host: c.Host, Port: c.Port, Reason: c.Reason})
	}
	return out
}

// outOfMemory reports whether a warm-up command, such as the browser, was killed for lack of
// memory.
func (c *call) outOfMemory(ctx context.Context, l *scheduler.Lease) bool {
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

// isolation describes the isolation of the browser sandbox.
func (c *call) isolation(l *scheduler.Lease) string {
	t, _ := c.opts.Scheduler.Template(l.Template)
	return fmt.Sprintf(
		"class %s: a separate sandbox, destroyed afterwards, without a network interface "+
			"(everything goes through the gateway and its rules), seccomp, no capabilities, uid %d; "+
			"Chromium's own sandbox is off, since it needs user namespaces or a setuid helper, and there are neither",
		t.Spec.Class.OrDefault(),
		runtime.CommandUID,
	)
}
