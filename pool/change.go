package pool

import (
	"context"
	"time"
)

// changed is the reason for destroying the sandboxes of a replaced template.
const changed = "its template has changed"

// Replace changes the template: from now on the pool hands out only what the new create makes. It
// destroys the warm sandboxes of the old template now, and those being created once they exist.
// Taken sandboxes stay with their owners and count until Gone. Waiting callers keep waiting.
// Replace revives a removed pool.
func (p *Pool[T]) Replace(s Settings, create func(context.Context) (T, error)) {
	p.mu.Lock()
	p.removed = nil
	p.opts.Settings, p.opts.Create = s.withDefaults(), create
	old := p.renew()
	p.mu.Unlock()
	p.drop(old, changed)
}

// Resize changes the settings only. Warm sandboxes stay; a surplus is destroyed as shrink does it.
func (p *Pool[T]) Resize(s Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opts.Settings = s.withDefaults()
	p.wakeUp()
}

// Remove drains the pool: warm sandboxes are destroyed, and waiting and later callers get the error
// why. Taken sandboxes stay with their owners. Replace revives the pool.
func (p *Pool[T]) Remove(why error) {
	p.mu.Lock()
	p.removed = why
	p.failWaiters(why)
	old := p.renew()
	p.mu.Unlock()
	p.drop(old, "its template is removed")
}

// Empty reports whether no sandbox is warm, being created or taken, and no caller waits.
func (p *Pool[T]) Empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count() == 0 && p.wait.len() == 0
}

// renew begins a new generation and returns the warm sandboxes of the last one, which now count as
// taken. The caller holds mu.
func (p *Pool[T]) renew() []item[T] {
	p.gen++
	p.failures, p.notUntil, p.lastErr = 0, time.Time{}, ""
	old := p.warm
	p.warm = nil
	for _, i := range old {
		p.taken[i.value] = struct{}{}
	}
	p.wakeUp()
	return old
}

func (p *Pool[T]) drop(old []item[T], why string) {
	for _, i := range old {
		p.discard(context.Background(), i.value, why)
	}
}
