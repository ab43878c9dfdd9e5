package pool

import (
	"context"
	"time"
)

// changed is why the sandboxes of a replaced template are destroyed.
const changed = "its template has changed"

// Replace changes the template: from now on only what the new create made is
// handed out. Warm ones of before are destroyed, those being created as soon
// as they are there; those handed out stay with their owners, and count until
// they are gone. Who waits goes on waiting. A pool that was removed is one
// again.
func (p *Pool[T]) Replace(s Settings, create func(context.Context) (T, error)) {
	p.mu.Lock()
	p.removed = nil
	p.opts.Settings, p.opts.Create = s.withDefaults(), create
	old := p.renew()
	p.mu.Unlock()
	p.drop(old, changed)
}

// Resize changes the settings and nothing else: what is warm stays, and goes
// as far as it is too much.
func (p *Pool[T]) Resize(s Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opts.Settings = s.withDefaults()
	p.kick()
}

// Remove drains the pool for good: nothing is handed out or created any more,
// who waits and who comes later gets the error, and warm ones are destroyed.
// Those handed out stay with their owners. Replace makes it a pool again.
func (p *Pool[T]) Remove(why error) {
	p.mu.Lock()
	p.removed = why
	p.tell(why)
	old := p.renew()
	p.mu.Unlock()
	p.drop(old, "its template is removed")
}

// Empty says whether nothing is warm, being created, handed out or waited for.
func (p *Pool[T]) Empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count() == 0 && p.wait.len() == 0
}

// renew begins a new generation, and returns the warm ones of the last, which
// count as taken. The caller holds mu.
func (p *Pool[T]) renew() []item[T] {
	p.gen++
	p.inRow, p.notUntil, p.lastErr = 0, time.Time{}, ""
	old := p.warm
	p.warm = nil
	for _, i := range old {
		p.taken[i.value] = struct{}{}
	}
	p.kick()
	return old
}

func (p *Pool[T]) drop(old []item[T], why string) {
	for _, i := range old {
		p.discard(context.Background(), i.value, why)
	}
}
