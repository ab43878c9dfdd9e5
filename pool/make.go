package pool

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
)

// Make returns a sandbox that create makes for one caller. It is for callers whose sandbox must
// differ from the warm ones. The sandbox counts toward Max until Gone, and warm ones beyond Max are
// destroyed. At Max, Make fails with an *EmptyError, whatever is warm; callers do not queue.
func (p *Pool[T]) Make(ctx context.Context, caller string, create func(context.Context) (T, error)) (value T, err error) {
	if ctx.Err() != nil {
		return value, context.Cause(ctx)
	}
	p.mu.Lock()
	switch {
	case p.stopped:
		err = fmt.Errorf("the pool of template %s is stopping: %w", p.opts.Name, errdefs.ErrUnavailable)
	case p.removed != nil:
		err = p.removed
	case len(p.taken)-p.retiring+p.making+p.wait.len() >= p.opts.Settings.Max:
		err = &EmptyError{Template: p.opts.Name, RetryAfter: p.retryAfter()}
	}
	if err != nil {
		p.mu.Unlock()
		return value, err
	}
	p.making++ // counted before it is created
	// Also if it fails: a caller whose calls fail must not come first again and again.
	p.opts.Order.served(caller)
	p.wakeUp()
	p.mu.Unlock()
	value, err = create(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer p.wakeUp()
	p.making--
	if err != nil {
		return value, err
	}
	p.created++
	p.taken[value] = struct{}{}
	return value, nil
}
