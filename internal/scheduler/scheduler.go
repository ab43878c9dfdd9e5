// Package scheduler owns sandboxes from the intent to create one to its end:
// admission by number and memory, the warm pools, leases with their deadlines,
// what a crash or a hand-over left, and the sweep that tries again until
// nothing is left.
//
// It never decides what a caller may do, and runs no command of its own. Run
// owns its goroutines and returns when all have ended. Errors are classed by
// errdefs; a lease that is over gives an *EndedError with the reason.
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

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// Template is what a pool keeps warm.
type Template struct {
	Name string
	// Spec is complete but for ID, Owner, Template and Build.
	Spec runtime.Spec
	Pool pool.Settings
	// Env and User are defaults of its commands.
	Env  map[string]string
	User string
	// Warmup runs before a sandbox counts as warm.
	Warmup []Hook
}

// Hook is a command that warms a sandbox up.
type Hook struct {
	Argv    []string
	Timeout time.Duration
	// Background starts it as a shell that lives on in the lease.
	Background bool
}

// Options of a Scheduler; all but Log are needed.
type Options struct {
	Driver  runtime.Driver
	Store   *store.Store
	Volumes *volumes.Manager
	// Templates are there from the start; see Put and Drop for later ones.
	Templates []Template
	// MaxSandboxes and MaxMemory bound what exists at once, warm ones too.
	MaxSandboxes int
	MaxMemory    int64
	// Queue bounds how many calls wait for a sandbox at once.
	Queue int
	// Step, if set, is told of every state that a sandbox comes to. It must not
	// wait.
	Step func(Step)
	// Build tells warm sandboxes of another program from ours.
	Build string
	// Keep is how long ended leases can be looked at.
	Keep time.Duration
	Log  *slog.Logger
}

// Scheduler is made by New, filled by Recover, and works while Run runs.
type Scheduler struct {
	opts   Options
	log    *slog.Logger
	budget *budget
	shelf  shelf
	turns  *pool.FairOrder // of callers over all pools

	stuckTime time.Duration // the constant, but in tests

	mu      sync.Mutex
	leases  map[string]*Lease
	usage   map[string]*usage // by caller
	waiting int
	broken  map[string]broken // sandboxes that could not be removed yet
	closed  bool
	work    sync.WaitGroup // of destroys under way
}

// broken is a sandbox that the sweep has to remove.
type broken struct {
	row    store.Sandbox
	to     store.State
	reason string
	remove func(context.Context) error
	lease  *Lease // the others are of a sandbox without a lease
}

// New returns a scheduler that knows nothing yet.
func New(opts Options) *Scheduler {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	if opts.Keep == 0 {
		opts.Keep = time.Hour
	}
	s := &Scheduler{
		opts: opts, log: opts.Log, stuckTime: stuckTime, budget: newBudget(opts.MaxSandboxes, opts.MaxMemory),
		turns: &pool.FairOrder{}, leases: map[string]*Lease{}, usage: map[string]*usage{}, broken: map[string]broken{},
	}
	s.shelf.stocks = map[string]*stock{}
	for _, t := range opts.Templates {
		s.Put(t)
	}
	return s
}

// Run keeps pools filled and ends what is due, until ctx ends. Then warm
// sandboxes and leases are let go of, not destroyed: the next process adopts
// them.
func (s *Scheduler) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return s.runPools(ctx) })
	g.Go(func() error { return s.tick(ctx) })
	g.Go(func() error { return s.repair(ctx) })
	g.Go(func() error { return s.makeRoom(ctx) })
	err := g.Wait()
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.work.Wait()
	s.release()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// Lease returns a live lease of the caller, to be used by its id; one that has
// ended gives an *EndedError, one of another caller and one never made are
// NotFound alike. What a tool has for itself is PermissionDenied: it may reach,
// and be trusted with, more than its caller.
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
		return nil, usererror.Errorf(errdefs.ErrPermissionDenied, "sandbox %s is that of a tool's call, and of nobody else", id)
	}
	if row.State == store.Leased && row.Reason == "" { // promised just now
		return nil, errBinding
	}
	return nil, &EndedError{ID: id, Reason: row.Reason}
}

// Row is what is recorded of a lease of the caller, ended ones too.
func (s *Scheduler) Row(ctx context.Context, caller, id string) (store.Sandbox, error) {
	row, err := s.opts.Store.Sandbox(ctx, id)
	if errdefs.IsNotFound(err) || err == nil && row.Caller != caller {
		return store.Sandbox{}, usererror.Errorf(errdefs.ErrNotFound, "there is no sandbox %q", id)
	}
	return row, err
}

// Live returns the caller's live lease by id without asking the store.
func (s *Scheduler) Live(id string) *Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leases[id]
}

func (s *Scheduler) all() []*Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.leases))
}
