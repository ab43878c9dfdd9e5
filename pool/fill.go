package pool

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// look starts what should be created, retires what is too old, and says when
// to look again.
func (p *Pool[T]) look(ctx context.Context) time.Duration {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return lookTime
	}
	s := p.opts.Settings
	p.tokens = min(float64(s.Parallel), p.tokens+now.Sub(p.filled).Seconds()*s.Rate)
	p.filled = now
	p.retire(ctx, now)
	p.shrink(ctx, now)
	if p.removed != nil {
		return lookTime
	}
	if wait := p.notUntil.Sub(now); wait > 0 {
		return min(wait, lookTime)
	}
	if len(p.warm) >= p.wanted(now) {
		p.short = time.Time{}
	}
	for p.creating < s.Parallel && p.count() < s.Max {
		if p.inRow > 0 && p.creating > 0 {
			break // after a failure one at a time
		}
		if p.wait.len() <= p.creating { // for those who wait, as fast as it goes
			if len(p.warm)+p.creating-p.wait.len() >= p.target(now) {
				break
			}
			if wait := p.settles(now); wait > 0 {
				return min(wait, lookTime)
			}
			if p.tokens < 1 {
				wait := time.Duration((1 - p.tokens) / s.Rate * float64(time.Second))
				return min(max(wait, time.Millisecond), lookTime)
			}
		}
		p.tokens = max(0, p.tokens-1)
		p.creating++ // counted before it is created
		gen, create := p.gen, p.opts.Create
		p.work.Go(func() { p.create(ctx, gen, create) }) // Run waits for it
	}
	return lookTime
}

// settles is for how long those who have sandboxes are left alone yet: see
// Settings.Settle. The caller holds mu.
func (p *Pool[T]) settles(now time.Time) time.Duration {
	if p.short.IsZero() {
		p.short = now
	}
	if len(p.taken) == 0 {
		return 0
	}
	return p.short.Add(p.opts.Settings.Settle).Sub(now)
}

// target is how many should be warm: one more while one is to be replaced.
func (p *Pool[T]) target(now time.Time) int {
	if p.aged(now) {
		return p.wanted(now) + 1
	}
	return p.wanted(now)
}

// wanted is how many are kept warm: Min, or what the demand of late asks for.
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

// retire takes the oldest warm one away if it is too old and its successor is
// there; or, where Max leaves no room for both, if one can be made at once. So
// a pool that was filled at once is not emptied at once, and keeps old ones
// while no new one can be made.
func (p *Pool[T]) retire(ctx context.Context, now time.Time) {
	if !p.aged(now) || p.retiring > 0 {
		return
	}
	succeeded := len(p.warm) > p.wanted(now)
	noRoom := p.count() >= p.opts.Settings.Max && p.creating == 0 && p.inRow == 0 && p.tokens >= 1
	if !succeeded && !noRoom {
		return
	}
	p.oldestGoes(ctx, "too old")
}

// shrink takes warm ones away that are more than are wanted: at once where they
// are over Max, else one at a time and slowly, as demand may come back.
func (p *Pool[T]) shrink(ctx context.Context, now time.Time) {
	for p.count() > p.opts.Settings.Max && len(p.warm) > 0 {
		p.oldestGoes(ctx, tooMany)
	}
	if p.retiring > 0 || len(p.warm) <= p.target(now) {
		p.enough = now
		return
	}
	if now.Sub(p.enough) >= shrinkTime {
		p.enough = now
		p.oldestGoes(ctx, tooMany)
	}
}

// tooMany is why a warm one goes that is not wanted any more.
const tooMany = "more are warm than are wanted"

// oldestGoes destroys the oldest warm one. The caller holds mu.
func (p *Pool[T]) oldestGoes(ctx context.Context, why string) {
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

// create makes one and hands it on.
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
		p.inRow, p.notUntil = 0, time.Time{}
		p.offer(item[T]{v, time.Now(), gen})
	} else {
		p.taken[v] = struct{}{}
	}
	p.kick()
	p.mu.Unlock()
	if !current {
		p.opts.Destroy(context.WithoutCancel(ctx), v, changed)
		p.Gone(v)
	}
}

// failure notes that a creation came to nothing, and tells those who wait
// when there is no more hope than there.
func (p *Pool[T]) failure(ctx context.Context, gen int, err error) {
	inRow := p.noteFailure(ctx, gen, err)
	if inRow == 0 {
		return
	}
	p.log.Error("sandbox not created", "template", p.opts.Name, "error", err, "in_a_row", inRow)
	if inRow >= tellAfter || hopeless(err) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.tell(fmt.Errorf("no sandbox of template %s can be made: %w", p.opts.Name, err))
	}
}

// noteFailure returns how many failures there were in a row, none if this one
// says nothing: when stopping, or of a template that is no more.
func (p *Pool[T]) noteFailure(ctx context.Context, gen int, err error) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.creating--
	p.kick()
	if ctx.Err() != nil || gen != p.gen {
		return 0
	}
	p.failed++
	p.inRow++
	p.lastErr = err.Error()
	p.notUntil = time.Now().Add(min(backoffMax, backoffMin<<min(p.inRow-1, 12)))
	return p.inRow
}

// hopeless errors do not go away by trying again.
func hopeless(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) || errdefs.IsNotImplemented(err)
}

// tell gives everybody who waits an error. The caller holds mu.
func (p *Pool[T]) tell(err error) {
	for w := p.wait.pop(); w != nil; w = p.wait.pop() {
		w.ready <- served[T]{err: err}
	}
}

func (p *Pool[T]) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	p.tell(fmt.Errorf("the pool of template %s is stopping: %w", p.opts.Name, errdefs.ErrUnavailable))
}
