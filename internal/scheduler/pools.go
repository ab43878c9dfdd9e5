package scheduler

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// creator returns a function that creates sandboxes of this version of a template.
func (s *Scheduler) creator(t Template, from *poolDemand) func(context.Context) (*instance, error) {
	return func(ctx context.Context) (*instance, error) { return s.create(ctx, t, from) }
}

func (s *Scheduler) newPool(t Template, from *poolDemand) *pool.Pool[*instance] {
	return pool.New(pool.Options[*instance]{
		Name:     t.Name,
		Settings: t.Pool,
		Create:   s.creator(t, from),
		Probe:    s.probe,
		Destroy: func(ctx context.Context, m *instance, why string) {
			row := store.Sandbox{ID: m.id, Template: m.template, Memory: m.memory}
			if err := s.discard(ctx, row, store.Gone, why, m.sandbox.Destroy); err != nil {
				s.log.Error("failed to remove sandbox; will retry", "sandbox", m.id, "error", err)
			}
		},
		Order: s.order,
		Log:   s.log,
	})
}

// makeRoom destroys idle warm sandboxes while a caller waits for another template and the host is
// full. It destroys one at a time, from the pool with the most warm sandboxes.
func (s *Scheduler) makeRoom(ctx context.Context) error {
	t := time.NewTicker(tickInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.capacity.starvedCh:
		case <-t.C: // a sandbox may have become warm, or a caller may wait, since
		}
		for ctx.Err() == nil && s.capacity.isStarved() && s.destroyOneWarm(ctx) {
		}
	}
}

// destroyOneWarm destroys one warm sandbox. It reports false if there is none.
func (s *Scheduler) destroyOneWarm(ctx context.Context) bool {
	var richest *pool.Pool[*instance]
	most := 0
	for _, st := range s.templates.all() {
		p := st.pool
		if n := p.Stats().Warm; n > most {
			richest, most = p, n
		}
	}
	return richest != nil && richest.Yield(ctx, "its room is needed")
}

// fingerprint identifies the program and the version of a template. Warm sandboxes with the same
// fingerprint are kept over a restart.
func (s *Scheduler) fingerprint(t Template) string {
	spec, err := json.Marshal(struct { //nolint:musttag // it is only hashed
		runtime.Spec
		Env    map[string]string `json:",omitempty"`
		User   string            `json:",omitempty"`
		Warmup []Hook            `json:",omitempty"`
	}{t.Spec, t.Env, t.User, t.Warmup})
	if err != nil { // not expected: plain data
		return s.opts.Build
	}
	sum := sha256.Sum256(append(spec, s.opts.Build...))
	return hex.EncodeToString(sum[:8])
}

// PoolStats holds the state of one template's pool.
type PoolStats struct {
	Template, Image string
	pool.Stats
}

// Pools returns the state of all pools, sorted by template.
func (s *Scheduler) Pools() []PoolStats {
	out := []PoolStats{}
	for _, name := range s.Templates() {
		if t, st, ok := s.templates.leasable(name); ok {
			out = append(out, PoolStats{Template: name, Image: t.Spec.Image.Ref, Stats: st.pool.Stats()})
		}
	}
	return out
}

// releaseHandles releases the handles of all sandboxes, which keep running.
func (s *Scheduler) releaseHandles() {
	var errs []error
	for _, st := range s.templates.all() {
		for _, m := range st.pool.Rest() {
			errs = append(errs, m.sandbox.Release())
		}
	}
	for _, l := range s.liveLeases() {
		l.mu.Lock()
		m := l.instance
		l.mu.Unlock()
		if m != nil {
			errs = append(errs, m.sandbox.Release())
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("failed to release sandboxes", "error", err)
	}
}

// DestroyAll removes every sandbox, including leased ones, and what the driver keeps for templates.
// It must not run together with Run.
func (s *Scheduler) DestroyAll(ctx context.Context) error {
	found, err := s.opts.Driver.List(ctx, s.opts.Store.Owner())
	if err != nil {
		return err
	}
	rows, err := s.opts.Store.Live(ctx)
	if err != nil {
		return err
	}
	ids := map[string]bool{}
	for _, f := range found {
		ids[f.ID] = true
	}
	for _, r := range rows {
		ids[r.ID] = true
	}
	var g errgroup.Group // no context: a failure does not stop the others
	g.SetLimit(recoverParallel)
	errs := make(chan error, len(ids))
	for id := range ids {
		g.Go(func() error { errs <- s.shutDown(ctx, id); return nil })
	}
	_ = g.Wait()
	close(errs)
	var all []error
	for err := range errs {
		all = append(all, err)
	}
	if k, ok := s.opts.Driver.(runtime.TemplateKeeper); ok {
		all = append(all, k.RemoveTemplates(ctx, s.opts.Store.Owner()))
	}
	return errors.Join(all...)
}

// shutDown removes one sandbox and stores its end.
func (s *Scheduler) shutDown(ctx context.Context, id string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("sandbox %s is not removed: %w", id, context.Cause(ctx))
	}
	if err := s.setState(ctx, id, store.Stopping, ShutDown); err != nil {
		s.log.Error("failed to mark a sandbox as stopping", "sandbox", id, "error", err)
	}
	failpoint.Hit("scheduler.destroy.marked")
	one, cancel := context.WithTimeout(ctx, destroyTimeout)
	defer cancel()
	if err := s.opts.Driver.Remove(one, id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	failpoint.Hit("scheduler.destroy.removed")
	return s.recordSandboxEnd(ctx, id, ShutDown, "")
}
