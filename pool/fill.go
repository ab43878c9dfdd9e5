package pool

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// maintain starts creations that are due, retires sandboxes that are too old, and returns when to
// check again.
func (p *Pool[T]) maintain(ctx context.Context) time.Duration {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return maintainInterval
	}
	s := p.opts.Settings
	p.tokens = min(float64(s.Parallel), p.tokens+now.Sub(p.filled).Seconds()*s.Rate)
	p.filled = now
	p.retire(ctx, now)
	p.shrink(ctx, now)
	if p.removed != nil {
		return maintainInterval
	}
	if wait := p.notUntil.Sub(now); wait > 0 {
		return min(wait, maintainInterval)
	}
	if len(p.warm) >= p.wanted(now) {
		p.short = time.Time{}
	}
	for p.creating < s.Parallel && p.count() < s.Max {
		if p.failures > 0 && p.creating > 0 {
			break // after a failure, one creation at a time
		}
		if p.wait.len() <= p.creating { // every waiter has a creation under way: the refill limits apply
			if len(p.warm)+p.creating-p.wait.len() >= p.target(now) {
				break
			}
			if wait := p.refillDelay(now); wait > 0 {
				return min(wait, maintainInterval)
			}
			if p.tokens < 1 {
				wait := time.Duration((1 - p.tokens) / s.Rate * float64(time.Second))
				return min(max(wait, time.Millisecond), maintainInterval)
			}
		}
		p.tokens = max(0, p.tokens-1)
		p.creating++ // counted before it is created
		gen, create := p.gen, p.opts.Create
		p.work.Go(func() { p.create(ctx, gen, create) }) // Run waits for it
	}
	return maintainInterval
}

// refillDelay returns how long a refill must still wait: see Settings.RefillDelay. The caller holds
// mu.
func (p *Pool[T]) refillDelay(now time.Time) time.Duration {
	if p.short.IsZero() {
		p.short = now
	}
	if len(p.taken) == 0 {
		return 0
	}
	return p.short.Add(p.opts.Settings.RefillDelay).Sub(now)
}

// target returns how many should be warm, plus one while an aged sandbox awaits its successor.
func (p *Pool[T]) target(now time.Time) int {
	if p.aged(now) {
		return p.wanted(now) + 1
	}
	return p.wanted(now)
}

// wanted returns how many to keep warm: Min, or what recent demand calls for.
func (p *Pool[T]) wanted(now time.Time) int {
	s := p.opts.Settings
	if p.removed != nil {
		return 0
	}
	if !s.Adaptive {
		return s.Min
	}
	return min(max(p.demand.need(now), s.Min), s.Max)
}

func (p *Pool[T]) aged(now time.Time) bool {
	return len(p.warm) > 0 && now.Sub(p.warm[0].made) >= p.opts.Settings.MaxAge
}

// retire destroys the oldest warm sandbox if it is too old and its successor exists. Where Max
// leaves no room for both, it retires one only if a creation can start at once. So a pool that was
// filled at once does not empty at once, and it keeps old sandboxes while creations fail.
func (p *Pool[T]) retire(ctx context.Context, now time.Time) {
	if !p.aged(now) || p.retiring > 0 {
		return
	}
	succeeded := len(p.warm) > p.wanted(now)
	noRoom := p.count() >= p.opts.Settings.Max && p.creating == 0 && p.failures == 0 && p.tokens >= 1
	if !succeeded && !noRoom {
		return
	}
	p.destroyOldest(ctx, "too old")
}

// shrink destroys surplus warm sandboxes: at once while the pool is over Max, otherwise slowly, one
// at a time, since demand may return.
func (p *Pool[T]) shrink(ctx context.Context, now time.Time) {
	for p.count()-p.retiring > p.opts.Settings.Max && len(p.warm) > 0 {
		p.destroyOldest(ctx, tooMany)
	}
	if p.retiring > 0 || len(p.warm) <= p.target(now) {
		p.enough = now
		return
	}
	if now.Sub(p.enough) >= shrinkTime {
		p.enough = now
		p.destroyOldest(ctx, tooMany)
	}
}

// tooMany is the reason for destroying a surplus warm sandbox.
const tooMany = "more are warm than are wanted"

// destroyOldest destroys the oldest warm sandbox in the background. The caller holds mu.
func (p *Pool[T]) destroyOldest(ctx context.Context, why string) {
	old := p.warm[0].value
	p.warm = p.warm[1:]
	p.taken[old] = struct{}{}
	p.retiring++
	p.work.Go(func() { // Run waits for it
		p.opts.Destroy(context.WithoutCancel(ctx), old, why)
		p.mu.Lock()
		p.retiring--
		p.mu.Unlock()
		p.Gone(old)
	})
}

// create makes one sandbox and offers it.
func (p *Pool[T]) create(ctx context.Context, gen int, create func(context.Context) (T, error)) {
	began := time.Now()
	v, err := create(ctx)
	if err != nil {
		p.failure(ctx, gen, err)
		return
	}
	p.mu.Lock()
	p.creating--
	p.created++
	p.demand.made(time.Since(began))
	current := gen == p.gen
	if current {
		p.failures, p.notUntil = 0, time.Time{}
		p.offer(item[T]{v, time.Now(), gen})
	} else {
		p.taken[v] = struct{}{}
	}
	p.wakeUp()
	p.mu.Unlock()
	if !current {
		p.opts.Destroy(context.WithoutCancel(ctx), v, changed)
		p.Gone(v)
	}
}

// failure counts a failed creation. It fails the waiting callers after several failures in a row,
// or at once if trying again cannot help.
func (p *Pool[T]) failure(ctx context.Context, gen int, err error) {
	failures := p.noteFailure(ctx, gen, err)
	if failures == 0 {
		return
	}
	p.log.Error("failed to create sandbox; will retry", "template", p.opts.Name, "error", err, "failures", failures)
	if failures >= failWaitersAfter || permanent(err) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failWaiters(fmt.Errorf("no sandbox of template %s can be made: %w", p.opts.Name, err))
	}
}

// noteFailure returns the number of failures in a row. It returns 0 if this failure does not count:
// the pool is stopping, or the template was replaced.
func (p *Pool[T]) noteFailure(ctx context.Context, gen int, err error) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.creating--
	p.wakeUp()
	if ctx.Err() != nil || gen != p.gen {
		return 0
	}
	p.failed++
	p.failures++
	p.lastErr = err.Error()
	p.notUntil = time.Now().Add(min(backoffMax, backoffMin<<min(p.failures-1, 12)))
	return p.failures
}

// permanent reports whether trying again cannot help.
func permanent(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) ||
		errdefs.IsNotImplemented(err)
}

// failWaiters returns err to every waiting caller. The caller holds mu.
func (p *Pool[T]) failWaiters(err error) {
	for w := p.wait.pop(); w != nil; w = p.wait.pop() {
		w.ready <- served[T]{err: err}
	}
}

func (p *Pool[T]) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.failWaiters(fmt.Errorf("the pool of template %s is stopping: %w", p.opts.Name, errdefs.ErrUnavailable))
}
