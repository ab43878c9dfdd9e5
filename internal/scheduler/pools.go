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

// creator makes sandboxes of one version of a template.
func (s *Scheduler) creator(t Template, from *source) func(context.Context) (*member, error) {
	return func(ctx context.Context) (*member, error) { return s.create(ctx, t, from) }
}

func (s *Scheduler) newPool(t Template, from *source) *pool.Pool[*member] {
	return pool.New(pool.Options[*member]{
		Name:     t.Name,
		Settings: t.Pool,
		Create:   s.creator(t, from),
		Probe:    func(ctx context.Context, m *member) error { return m.probe(ctx) },
		Destroy: func(ctx context.Context, m *member, why string) {
			row := store.Sandbox{ID: m.id, Template: m.template, Memory: m.memory}
			if err := s.discard(ctx, row, store.Gone, why, m.sandbox.Destroy); err != nil {
				s.log.Error("sandbox not removed; trying again", "sandbox", m.id, "error", err)
			}
		},
		Order: s.turns,
		Log:   s.log,
	})
}

// makeRoom gives up idle warm sandboxes while somebody waits for one of another
// template and the host has no room for it: one at a time, of the pool that has
// the most.
func (s *Scheduler) makeRoom(ctx context.Context) error {
	t := time.NewTicker(tickTime)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.budget.hungry:
		case <-t.C: // one may have become warm, or be wanted, since
		}
		for ctx.Err() == nil && s.budget.starved() && s.yield(ctx) {
		}
	}
}

// yield destroys one warm sandbox; false if there is none.
func (s *Scheduler) yield(ctx context.Context) bool {
	var richest *pool.Pool[*member]
	most := 0
	for _, st := range s.shelf.all() {
		p := st.pool
		if n := p.Stats().Warm; n > most {
			richest, most = p, n
		}
	}
	return richest != nil && richest.Yield(ctx, "its room is needed")
}

// build tells sandboxes that can be kept over a restart: made by this program
// from this very template, with the same warm-up.
func (s *Scheduler) build(t Template) string {
	spec, err := json.Marshal(struct {
		runtime.Spec
		Env    map[string]string `json:",omitempty"`
		User   string            `json:",omitempty"`
		Warmup []Hook            `json:",omitempty"`
	}{t.Spec, t.Env, t.User, t.Warmup})
	if err != nil { // it is plain data
		return s.opts.Build
	}
	sum := sha256.Sum256(append(spec, s.opts.Build...))
	return hex.EncodeToString(sum[:8])
}

// PoolStats is one template's pool and image.
type PoolStats struct {
	Template, Image string
	pool.Stats
}

// Pools tells the state of all pools, sorted by template.
func (s *Scheduler) Pools() []PoolStats {
	out := []PoolStats{}
	for _, name := range s.Templates() {
		if t, st, ok := s.shelf.lookUp(name); ok {
			out = append(out, PoolStats{Template: name, Image: t.Spec.Image.Ref, Stats: st.pool.Stats()})
		}
	}
	return out
}

// release lets go of everything that lives on.
func (s *Scheduler) release() {
	var errs []error
	for _, st := range s.shelf.all() {
		for _, m := range st.pool.Rest() {
			errs = append(errs, m.sandbox.Release())
		}
	}
	for _, l := range s.all() {
		l.mu.Lock()
		m := l.member
		l.mu.Unlock()
		if m != nil {
			errs = append(errs, m.sandbox.Release())
		}
	}
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("sandboxes not let go of", "error", err)
	}
}

// DestroyAll removes every sandbox, leased ones too. It is for down, instead
// of Run.
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
	var g errgroup.Group // none of them stops the others
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
	return errors.Join(all...)
}

// shutDown removes one sandbox with all that is promised of it.
func (s *Scheduler) shutDown(ctx context.Context, id string) error {
	if ctx.Err() != nil {
		return fmt.Errorf("sandbox %s is not removed: %w", id, context.Cause(ctx))
	}
	if err := s.mark(ctx, id, store.Stopping, ShutDown); err != nil {
		s.log.Error("sandbox not marked as stopping", "sandbox", id, "error", err)
	}
	failpoint.Hit("scheduler.destroy.marked")
	one, cancel := context.WithTimeout(ctx, destroyTime)
	defer cancel()
	if err := s.opts.Driver.Remove(one, id); err != nil {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	failpoint.Hit("scheduler.destroy.removed")
	return s.settleRest(ctx, id, ShutDown)
}
