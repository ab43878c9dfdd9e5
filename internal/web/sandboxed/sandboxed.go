// Package sandboxed carries out what the web tools do: it runs guest-web and browsers, each in a
// separate, fresh sandbox that reaches only what the call may contact.
package sandboxed

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// WebOptions configures the web tools.
type WebOptions struct {
	Host webtool.Host
	// Template names the template of web sandboxes, or "" for the default template.
	Template string
	// Roots holds root certificates in PEM, or "" for those of the image.
	Roots string
}

// BrowserOptions configures browser.open.
type BrowserOptions struct {
	// Allowed limits the hosts of pages for all callers.
	Allowed *reach.Limit
	// Template names the template of browser sandboxes.
	Template string
	// Roots holds additional root certificates in PEM, or "" for none.
	Roots string
}

// Sandboxes makes sandboxes and runs commands in them.
type Sandboxes interface {
	Acquire(ctx context.Context, p caller.Principal, r v1.SandboxRequest, a core.Acquisition) (*scheduler.Lease, error)
	// RunProgram runs a command. tune adjusts the guest's command.
	RunProgram(
		ctx context.Context, l *scheduler.Lease, id string, x v1.Exec, st core.Stream, tune func(*wire.Command),
	) (v1.ExecResult, error)
}

// Scheduler ends leases and knows their templates.
type Scheduler interface {
	End(ctx context.Context, l *scheduler.Lease, reason string, wait bool) error
	Template(name string) (scheduler.Template, bool)
}

// Gateway knows the connections of sandboxes.
type Gateway interface {
	// Connections returns a function that lists the latest connections of a sandbox, or nil if the
	// sandbox has no egress.
	Connections(sandbox string) func() []netpolicy.Connection
}

// Options configures a Service.
type Options struct {
	// Web configures the web tools. If it is nil, they reach nothing.
	Web *WebOptions
	// Browser configures browser.open. If it is nil, browser.open is disabled.
	Browser   *BrowserOptions
	Sandboxes Sandboxes
	Scheduler Scheduler
	Gateway   Gateway
	// MaxTimeout bounds a command.
	MaxTimeout time.Duration
	Log        *slog.Logger
}

// Service carries out the calls of web tools. Its methods may be called concurrently.
type Service struct{ opts Options }

// New returns a Service. It replaces missing options by ones that allow nothing.
func New(opts Options) *Service {
	if opts.Web == nil {
		none := &reach.Limit{}
		opts.Web = &WebOptions{Host: webtool.Host{Fetch: none, Request: none, Cache: cache.New(0, 0)}}
	}
	return &Service{opts: opts}
}

// Call is one call of a web tool.
type Call struct {
	ID        string
	Principal caller.Principal
	Profile   string
	Caps      tool.Caps
	// Placed is called with each lease that the call gets.
	Placed func(*scheduler.Lease)
}

// Web returns what a call of web.fetch, http.request or web.search needs.
func (s *Service) Web(c Call) webtool.Web {
	p := c.Principal
	return webtool.Web{
		Host: s.opts.Web.Host, Exchanger: &call{s, c}, Caller: p.Caller,
		Owner: fmt.Sprintf("%s\x00%s\x00%s\x00%d", p.Caller, p.Token, c.Profile, p.Trust),
	}
}

// Browser returns what a call of browser.open needs.
func (s *Service) Browser(c Call) webtool.Browser {
	allowed := &reach.Limit{}
	if o := s.opts.Browser; o != nil {
		allowed = o.Allowed
	}
	return webtool.Browser{Allowed: allowed, Opener: &call{s, c}, Exchanger: &call{s, c}}
}

// call carries out one call. It implements webtool.Exchanger and webtool.Opener.
type call struct {
	*Service
	Call
}

// lease leases a sandbox that reaches only the scope. The gateway adds the secrets. end ends the
// lease and does not wait for its removal.
func (c *call) lease(ctx context.Context, template string, scope reach.Scope, secrets []netpolicy.Secret) (
	l *scheduler.Lease, end func(), err error,
) {
	egress := &core.Egress{Rules: scope.Limit.Rules, Secrets: secrets}
	if scope.Ceiling != nil {
		egress.Ceiling = scope.Ceiling.Compiled
	}
	l, err = c.opts.Sandboxes.Acquire(ctx, c.Principal, v1.SandboxRequest{Template: template},
		core.Acquisition{OneShot: true, Private: true, Egress: egress})
	if err != nil {
		return nil, nil, err
	}
	c.Placed(l)
	return l, func() {
		if err := c.opts.Scheduler.End(ctx, l, scheduler.Finished, false); err != nil {
			// The sandbox has done its work, so its result is returned. The next start ends the lease.
			c.opts.Log.Error("failed to end a lease", "sandbox", l.ID, "error", err)
		}
	}, nil
}
