// Package governed runs tool calls. Each call is one transaction: identify, open the audit record,
// validate, policy, approval, lease, use the approval, run, shape the result, and close the record.
// transaction.go holds the steps in this order.
package governed

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/workspaces"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/sandboxed"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Config configures tool calls. The caller of New opens and closes its members.
type Config struct {
	Profiles *profile.Set
	// Default is the profile of callers that have none.
	Default  string
	Gate     *approval.Gate
	Limiter  *approval.Limiter
	Audit    *audit.Log
	Redactor *audit.Redactor
	// Outputs is the directory for outputs that exceed an answer.
	Outputs string
	// Compat configures ShellCompat. If it is nil, ShellCompat is disabled.
	Compat *Compat

	live atomic.Pointer[liveProfiles]
}

// liveProfiles are profiles that replace those of Config.
type liveProfiles struct {
	set      *profile.Set
	fallback string
}

// SetProfiles replaces Profiles and Default for later calls. It may be called concurrently with
// them.
func (g *Config) SetProfiles(set *profile.Set, fallback string) {
	g.live.Store(&liveProfiles{set, fallback})
}

// profiles returns the profiles in use, and the name of the one for callers that have none.
func (g *Config) profiles() (set *profile.Set, fallback string) {
	if l := g.live.Load(); l != nil {
		return l.set, l.fallback
	}
	return g.Profiles, g.Default
}

// ErrUngoverned reports that tools are not configured. Its class is NotImplemented.
var ErrUngoverned = fmt.Errorf("tools are not configured on this service: %w", errdefs.ErrNotImplemented)

func (g *Config) profile(name string) (*profile.Compiled, error) {
	set, _ := g.profiles()
	return set.Get(name)
}

// Options configures a Service.
type Options struct {
	// Config configures tool calls. If it is nil, tools are disabled.
	Config *Config
	// Web carries out the calls of web tools.
	Web *sandboxed.Service

	Store      *store.Store
	Volumes    *volumes.Manager
	Scheduler  *scheduler.Scheduler
	Callers    *caller.Service
	Keys       *idempotency.Keys
	Workspaces *workspaces.Service
	// Sandboxes carries out what a call does in sandboxes.
	Sandboxes Sandboxes
	// HandingOver ends when the service begins to stop. Calls that wait for approval then end.
	HandingOver context.Context

	// Stages, if set, is told about the stages of calls. OnEnd is called after each call, also one
	// that was refused, and OnVerdict after each decision of a policy. They must not block.
	Stages    stage.Observer
	OnEnd     func(Ended)
	OnVerdict func(profile string, verdict policy.Action)

	// Wait bounds the wait for a busy workspace. MaxOutput is the default of an answer's output, in
	// bytes.
	Wait      time.Duration
	MaxOutput int64
	Log       *slog.Logger
}

// Service runs tool calls and serves requests about tools, approvals and the audit log. Its methods
// may be called concurrently.
type Service struct {
	opts    Options
	log     *slog.Logger
	outputs *outputs // nil if tools are disabled
}

// New returns a Service. Run removes old outputs.
func New(opts Options) (*Service, error) {
	s := &Service{opts: opts, log: opts.Log}
	if opts.Config == nil {
		return s, nil
	}
	var err error
	s.outputs, err = openOutputs(opts.Config.Outputs)
	return s, err
}

// Run expires approval requests and removes old outputs until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	if s.opts.Config == nil {
		return nil
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.opts.Config.Gate.Run(ctx) })
	g.Go(func() error { s.outputs.run(ctx, s.log); return nil })
	return g.Wait()
}
