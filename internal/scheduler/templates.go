package scheduler

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/pool"
)

// templatePool is a template with its pool.
type templatePool struct {
	pool   *pool.Pool[*instance]
	source *poolDemand // the pool's demand in hostCapacity
	stop   context.CancelFunc

	// templateSet.mu guards these fields.
	template Template
	removed  bool // no new leases
}

// templateSet holds all templates by name. A removed template stays until its last sandbox is gone,
// so that one pool counts all sandboxes of a name.
type templateSet struct {
	mu    sync.RWMutex
	pools map[string]*templatePool
	// startPool starts a pool. It is nil unless Run is running.
	startPool func(*templatePool)
}

func (h *templateSet) find(name string) *templatePool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.pools[name]
}

// leasable returns a template and its pool. ok is false if it does not exist or was removed.
func (h *templateSet) leasable(name string) (Template, *templatePool, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	st := h.pools[name]
	if st == nil || st.removed {
		return Template{}, nil, false
	}
	return st.template, st, true
}

// all returns all templates, including removed ones, sorted by name.
func (h *templateSet) all() []*templatePool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := make([]*templatePool, 0, len(h.pools))
	for _, name := range slices.Sorted(maps.Keys(h.pools)) {
		out = append(out, h.pools[name])
	}
	return out
}

// pool returns the pool of a template, including a removed one, or nil.
func (s *Scheduler) pool(template string) *pool.Pool[*instance] {
	if st := s.templates.find(template); st != nil {
		return st.pool
	}
	return nil
}

// reportGone tells the pool that one of its sandboxes is gone.
func (s *Scheduler) reportGone(m *instance) {
	if p := s.pool(m.template); p != nil {
		p.Gone(m)
	}
}

func (s *Scheduler) template(name string) (Template, bool) {
	t, _, ok := s.templates.leasable(name)
	return t, ok
}

// Templates returns the names of the templates that can be leased, sorted.
func (s *Scheduler) Templates() []string {
	s.templates.mu.RLock()
	defer s.templates.mu.RUnlock()
	out := make([]string, 0, len(s.templates.pools))
	for name, st := range s.templates.pools {
		if !st.removed {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Template returns the version of a template that is leased now.
func (s *Scheduler) Template(name string) (Template, bool) { return s.template(name) }

// Change is the outcome of Put.
type Change string

// Outcomes of Put.
const (
	Added   Change = "added"
	Changed Change = "changed" // warm sandboxes are replaced
	Resized Change = "resized" // only the pool settings changed
	Same    Change = "same"
)

// Put adds or replaces a template. Warm sandboxes with the same fingerprint are kept; others are
// replaced gradually. Leases continue. Put may be called while Run runs.
func (s *Scheduler) Put(t Template) Change {
	s.templates.mu.Lock()
	defer s.templates.mu.Unlock()
	st := s.templates.pools[t.Name]
	if st == nil {
		st = s.newTemplatePool(t)
		s.templates.pools[t.Name] = st
		if s.templates.startPool != nil {
			s.templates.startPool(st)
		}
		return Added
	}
	old, back := st.template, st.removed
	st.template, st.removed = t, false
	switch {
	case back:
		st.pool.Replace(t.Pool, s.creator(t, st.source))
		return Added
	case s.fingerprint(old) != s.fingerprint(t):
		st.pool.Replace(t.Pool, s.creator(t, st.source))
		return Changed
	case old.Pool != t.Pool:
		st.pool.Resize(t.Pool)
		return Resized
	}
	return Same
}

// Drop removes a template and reports whether it existed. Waiting callers get NotFound, warm
// sandboxes are destroyed and leases continue.
func (s *Scheduler) Drop(name string) bool {
	s.templates.mu.Lock()
	defer s.templates.mu.Unlock()
	st := s.templates.pools[name]
	if st == nil || st.removed {
		return false
	}
	st.removed = true
	st.pool.Remove(usererror.Errorf(errdefs.ErrNotFound, "template %q has been removed", name))
	return true
}

// forgetRemovedTemplates drops removed templates without sandboxes.
func (s *Scheduler) forgetRemovedTemplates() {
	s.templates.mu.Lock()
	defer s.templates.mu.Unlock()
	for name, st := range s.templates.pools {
		if st.removed && st.pool.Empty() {
			st.stop()
			delete(s.templates.pools, name)
		}
	}
}

func (s *Scheduler) newTemplatePool(t Template) *templatePool {
	st := &templatePool{template: t, stop: func() {}, source: &poolDemand{}}
	st.pool = s.newPool(t, st.source)
	st.source.nextWaiter = st.pool.Waiting
	return st
}

// runPools runs all pools until ctx ends, including those added later.
func (s *Scheduler) runPools(ctx context.Context) error {
	var g errgroup.Group
	s.templates.mu.Lock()
	s.templates.startPool = func(st *templatePool) {
		one, stop := context.WithCancel(ctx)
		st.stop = stop
		g.Go(func() error { return st.pool.Run(one) })
	}
	for _, st := range s.templates.pools {
		s.templates.startPool(st)
	}
	s.templates.mu.Unlock()
	<-ctx.Done()
	s.templates.mu.Lock()
	s.templates.startPool = nil // g.Go must not be called during g.Wait
	s.templates.mu.Unlock()
	return g.Wait()
}

func (s *Scheduler) unknownTemplate(name string) error {
	return usererror.Errorf(
		errdefs.ErrNotFound,
		"template %q not found: use one of %s",
		name,
		strings.Join(s.Templates(), ", "),
	)
}
