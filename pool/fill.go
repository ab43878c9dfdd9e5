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
	p.retire(ctx, now)
	if wait := p.notUntil.Sub(now); wait > 0 {
		return wait
	}
	p.refillTokens(now)
	for p.creating < p.opts.Settings.Parallel && len(p.warm)+p.creating+len(p.taken) < p.opts.Settings.Max {
		wanted := p.wait.len() - p.creating // for those who wait, as fast as it goes
		if wanted <= 0 {
			if len(p.warm)+p.creating-p.wait.len() >= p.opts.Settings.Min {
				break
			}
			if p.tokens < 1 {
				return time.Duration((1 - p.tokens) / p.opts.Settings.Rate * float64(time.Second))
			}
		}
		p.tokens = max(0, p.tokens-1)
		p.creating++ // counted before it is created
		p.work.Add(1)
		go func() { // p.work: Run waits for it
			defer p.work.Done()
			p.create(ctx)
		}()
		if p.inRow > 0 {
			break // after a failure one at a time
		}
	}
	return lookTime
}

func (p *Pool[T]) refillTokens(now time.Time) {
	s := p.opts.Settings
	p.tokens = min(float64(s.Parallel), p.tokens+now.Sub(p.filled).Seconds()*s.Rate)
	p.filled = now
}

// retire takes the oldest warm one away if it is too old: one a look, so that
// a pool that was filled at once is not emptied at once.
func (p *Pool[T]) retire(ctx context.Context, now time.Time) {
	if len(p.warm) == 0 || now.Sub(p.warm[0].made) < p.opts.Settings.MaxAge {
		return
	}
	old := p.warm[0].value
	p.warm = p.warm[1:]
	p.taken[old] = struct{}{}
	p.work.Add(1)
	go func() { // p.work: Run waits for it
		defer p.work.Done()
		p.opts.Destroy(ctx, old, "too old")
		p.Gone(old)
	}()
}

// create makes one and hands it on.
func (p *Pool[T]) create(ctx context.Context) {
	v, err := p.opts.Create(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.creating--
	defer p.kick()
	if err == nil {
		p.created++
		p.inRow, p.notUntil = 0, time.Time{}
		p.offerLocked(v, time.Now())
		return
	}
	if ctx.Err() != nil {
		return // stopping is no failure
	}
	p.failed++
	p.inRow++
	p.lastErr = err.Error()
	p.notUntil = time.Now().Add(min(backoffMax, backoffMin<<min(p.inRow-1, 12)))
	p.log.Error("sandbox not created", "template", p.opts.Name, "error", err, "in_a_row", p.inRow)
	if p.inRow >= giveUp || hopeless(err) {
		p.tell(fmt.Errorf("no sandbox of template %s can be made: %w", p.opts.Name, err))
	}
}

// hopeless errors do not go away by trying again.
func hopeless(err error) bool {
	return errdefs.IsInvalidArgument(err) || errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) || errdefs.IsNotImplemented(err)
}

// tell gives everybody who waits an error.
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
