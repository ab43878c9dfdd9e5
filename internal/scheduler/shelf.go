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

// stock is one template with its pool.
type stock struct {
	pool   *pool.Pool[*member]
	source *source // the same pool as the budget sees it
	stop   context.CancelFunc

	// The shelf's lock guards these.
	template Template
	removed  bool // nothing of it is leased any more
}

// shelf is all templates by name. One that was removed stays until nothing of
// it is left, so that what is counted is counted in one pool.
type shelf struct {
	mu     sync.RWMutex
	stocks map[string]*stock
	// run starts a pool; nil until Run runs and after it has ended.
	run func(*stock)
}

func (h *shelf) find(name string) *stock {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return h.stocks[name]
}

// lookUp returns a template that can be leased, and its pool.
func (h *shelf) lookUp(name string) (Template, *stock, bool) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	st := h.stocks[name]
	if st == nil || st.removed {
		return Template{}, nil, false
	}
	return st.template, st, true
}

// all returns what there is, sorted by name, with what is on its way out.
func (h *shelf) all() []*stock {
	h.mu.RLock()
	defer h.mu.RUnlock()
	out := make([]*stock, 0, len(h.stocks))
	for _, name := range slices.Sorted(maps.Keys(h.stocks)) {
		out = append(out, h.stocks[name])
	}
	return out
}

// pool is the pool of a template, also of one that is on its way out, or nil.
func (s *Scheduler) pool(template string) *pool.Pool[*member] {
	if st := s.shelf.find(template); st != nil {
		return st.pool
	}
	return nil
}

// goneFrom says in its pool, if there is one, that a member is no more.
func (s *Scheduler) goneFrom(m *member) {
	if p := s.pool(m.template); p != nil {
		p.Gone(m)
	}
}

func (s *Scheduler) template(name string) (Template, bool) {
	t, _, ok := s.shelf.lookUp(name)
	return t, ok
}

// Templates lists the names that can be leased, sorted.
func (s *Scheduler) Templates() []string {
	s.shelf.mu.RLock()
	defer s.shelf.mu.RUnlock()
	out := make([]string, 0, len(s.shelf.stocks))
	for name, st := range s.shelf.stocks {
		if !st.removed {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// Template returns a template as it is leased now.
func (s *Scheduler) Template(name string) (Template, bool) { return s.template(name) }

// Change is what Put did.
type Change string

// The changes.
const (
	Added   Change = "added"
	Changed Change = "changed" // what was warm is made anew
	Resized Change = "resized" // the same sandboxes, other numbers
	Same    Change = "same"
)

// Put makes a template one that can be leased, or replaces it. Sandboxes that
// would be made in the same way stay warm; others are drained while new ones
// are made. Leases go on. It may be called while Run runs.
func (s *Scheduler) Put(t Template) Change {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	st := s.shelf.stocks[t.Name]
	if st == nil {
		st = s.newStock(t)
		s.shelf.stocks[t.Name] = st
		if s.shelf.run != nil {
			s.shelf.run(st)
		}
		return Added
	}
	old, back := st.template, st.removed
	st.template, st.removed = t, false
	switch {
	case back:
		st.pool.Replace(t.Pool, s.creator(t, st.source))
		return Added
	case s.build(old) != s.build(t):
		st.pool.Replace(t.Pool, s.creator(t, st.source))
		return Changed
	case old.Pool != t.Pool:
		st.pool.Resize(t.Pool)
		return Resized
	}
	return Same
}

// Drop makes a template one that is not leased any more: who waits for it is
// told, and what is warm is destroyed. Leases go on. False: there is none.
func (s *Scheduler) Drop(name string) bool {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	st := s.shelf.stocks[name]
	if st == nil || st.removed {
		return false
	}
	st.removed = true
	st.pool.Remove(usererror.Errorf(errdefs.ErrNotFound, "template %q has been removed", name))
	return true
}

// clear forgets templates that were removed and have nothing left.
func (s *Scheduler) clear() {
	s.shelf.mu.Lock()
	defer s.shelf.mu.Unlock()
	for name, st := range s.shelf.stocks {
		if st.removed && st.pool.Empty() {
			st.stop()
			delete(s.shelf.stocks, name)
		}
	}
}

func (s *Scheduler) newStock(t Template) *stock {
	st := &stock{template: t, stop: func() {}, source: &source{}}
	st.pool = s.newPool(t, st.source)
	st.source.turn = st.pool.Waiting
	return st
}

// runPools keeps all pools filled until ctx ends, those that come later too.
func (s *Scheduler) runPools(ctx context.Context) error {
	var g errgroup.Group
	s.shelf.mu.Lock()
	s.shelf.run = func(st *stock) {
		one, stop := context.WithCancel(ctx)
		st.stop = stop
		g.Go(func() error { return st.pool.Run(one) })
	}
	for _, st := range s.shelf.stocks {
		s.shelf.run(st)
	}
	s.shelf.mu.Unlock()
	<-ctx.Done()
	s.shelf.mu.Lock()
	s.shelf.run = nil // no Go after Wait has begun
	s.shelf.mu.Unlock()
	return g.Wait()
}

func (s *Scheduler) unknownTemplate(name string) error {
	return usererror.Errorf(errdefs.ErrNotFound, "there is no template %q: use one of %s", name, strings.Join(s.Templates(), ", "))
}
