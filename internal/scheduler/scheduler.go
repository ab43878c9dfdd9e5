// Package scheduler manages the sandbox lifecycle: admission, warm pools, leases, crash recovery
// and retried removals.
//
// It does not decide what a caller may do. Besides warm-up hooks it runs no commands. Run owns the
// goroutines and returns when all have ended. Errors are classed by errdefs. A lease that is over
// yields an *EndedError with the reason.
package scheduler

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/internal/namedlock"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Template describes the sandboxes of one pool.
type Template struct {
	Name string
	// Spec is complete except for ID, Owner, Template and Build.
	Spec runtime.Spec
	// AutoUserNamespace asks for Spec.UserNamespace where the driver can provide it.
	AutoUserNamespace bool
	Pool              pool.Settings
	// Env and User are defaults for commands.
	Env  map[string]string
	User string
	// Warmup runs before a sandbox counts as warm.
	Warmup []Hook

	// claimedBy is what the row of a new sandbox says of the workspace whose volume claim it has.
	claimedBy store.Lease
}

// Hook is a warm-up command.
type Hook struct {
	Argv    []string
	Timeout time.Duration
	// Background starts the command as a shell that stays in the lease.
	Background bool
}

// Options configures a Scheduler. Log, Keep and the hooks are optional.
type Options struct {
	Driver  runtime.Driver
	Store   *store.Store
	Volumes *volumes.Manager
	// Templates are the initial templates; see Put and Drop.
	Templates []Template
	// MaxSandboxes and MaxMemory limit all sandboxes of the host, including warm ones.
	MaxSandboxes int
	MaxMemory    int64
	// Queue bounds the calls that wait for a sandbox at once.
	Queue int
	// OnStateChange, if set, is called after each state change of a sandbox. It must not block.
	OnStateChange func(StateChange)
	// Stages, if set, is told about the stages of leases. OnLease is called after a lease began; warm
	// reports that its sandbox was ready before. OnProbe is called after a warm sandbox answered,
	// with the duration. They must not block.
	Stages  stage.Observer
	OnLease func(template string, warm bool)
	OnProbe func(took time.Duration)
	// Build identifies the program. Warm sandboxes of another build are not adopted.
	Build string
	// Keep is how long the rows of ended leases are kept. The default is one hour.
	Keep time.Duration
	Log  *slog.Logger
}

// Scheduler manages all sandboxes of a state directory. Call New, then Recover, then Run. Its
// methods may be called concurrently.
type Scheduler struct {
	opts      Options
	log       *slog.Logger
	capacity  *hostCapacity
	templates templateSet
	order     *pool.FairOrder // of callers, shared by all pools

	removalWait time.Duration // the constant, except in tests

	// recoverLocks prevents two leases that read the same workspace from finishing the same copy.
	recoverLocks namedlock.Locks

	mu             sync.Mutex
	leases         map[string]*Lease
	usage          map[string]*usage // by caller
	names          map[sandboxName]bool
	waiting        int
	failedRemovals map[string]failedRemoval // by sandbox id
	closed         bool
	work           sync.WaitGroup // background removals
}

// failedRemoval is a sandbox whose removal has to be retried.
type failedRemoval struct {
	row    store.Sandbox
	to     store.State
	reason string
	remove func(context.Context) error
	hold   *volumes.Hold // released after the removal, or nil
	lease  *Lease        // if set, only reason is used as well
}

// New returns a Scheduler without leases.
func New(opts Options) *Scheduler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Keep == 0 {
		opts.Keep = time.Hour
	}
	s := &Scheduler{
		opts: opts, log: opts.Log, removalWait: removalWait, capacity: newHostCapacity(opts.MaxSandboxes, opts.MaxMemory),
		order: &pool.FairOrder{}, leases: map[string]*Lease{}, usage: map[string]*usage{}, names: map[sandboxName]bool{},
		failedRemovals: map[string]failedRemoval{},
	}
	s.templates.pools = map[string]*templatePool{}
	for _, t := range opts.Templates {
		s.Put(t)
	}
	if k, ok := opts.Driver.(runtime.ClaimKeeper); ok && opts.Volumes != nil { // nil: only DestroyAll is called
		opts.Volumes.RemoveClaims(k.RemoveClaim)
	}
	return s
}

// Run fills the pools and ends due leases until ctx ends. It then releases all sandboxes without
// destroying them, for the next process to adopt.
func (s *Scheduler) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.runPools(ctx) })
	g.Go(func() error { return s.runDeadlines(ctx) })
	g.Go(func() error { return s.runRepairs(ctx) })
	g.Go(func() error { return s.makeRoom(ctx) })
	err := g.Wait()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
	s.releaseHandles()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Lease returns a live lease of the caller. A lease that has ended yields an *EndedError. A lease
// of another caller is NotFound. A tool's private lease is PermissionDenied, because its egress and
// secrets may exceed the caller's.
func (s *Scheduler) Lease(ctx context.Context, caller, id string) (*Lease, error) {
	s.mu.Lock()
	l := s.leases[id]
	s.mu.Unlock()
	if l != nil && l.Caller == caller && !l.private {
		return l, nil
	}
	row, err := s.Row(ctx, caller, id)
	if err != nil {
		return nil, err
	}
	if row.Lease.Private && row.Reason == "" {
		return nil, usererror.Errorf(
			errdefs.ErrPermissionDenied,
			"sandbox %s belongs to a tool call and cannot be used by id",
			id,
		)
	}
	if row.State == store.Leased && row.Reason == "" { // being acquired
		return nil, errBinding
	}
	return nil, &EndedError{ID: id, Reason: row.Reason, Detail: row.Lease.Detail}
}

// Row returns the stored row of a lease of the caller, including ended ones.
func (s *Scheduler) Row(ctx context.Context, caller, id string) (store.Sandbox, error) {
	row, err := s.opts.Store.Sandbox(ctx, id)
	if errdefs.IsNotFound(err) || err == nil && row.Caller != caller {
		return store.Sandbox{}, usererror.Errorf(errdefs.ErrNotFound, "sandbox %q not found", id)
	}
	return row, err
}

// Live returns the live lease with this id, or nil. It does not check the caller.
func (s *Scheduler) Live(id string) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[id]
}

func (s *Scheduler) liveLeases() []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.leases))
}

// FailedRemovals returns the number of sandboxes whose removal failed and is retried.
func (s *Scheduler) FailedRemovals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.failedRemovals)
}
