// Package pool keeps sandboxes of one template warm: created before they are
// asked for, probed before they are handed out, used once, replaced in time.
//
// It counts what is being created before it is created, so warm, creating and
// taken together never exceed Max. It knows nothing of leases, stores or
// drivers: what it keeps is a T that its owner creates, probes and destroys.
// Run owns every goroutine and waits for them. Errors are classed by errdefs;
// an empty pool answers with an *EmptyError.
package pool

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Settings of a pool.
type Settings struct {
	// Min is how many are kept warm, Max how many exist at once: warm, being
	// created and taken.
	Min, Max int
	// Rate bounds creations per second that nobody waits for, Parallel all
	// creations at once.
	Rate     float64
	Parallel int
	// MaxAge replaces a warm one that nobody took.
	MaxAge time.Duration
}

// Mode says what Take does when nothing is warm.
type Mode string

const (
	// Wait for one until the context ends.
	Wait Mode = "wait"
	// Cold makes one now, or refuses at Max.
	Cold Mode = "cold"
	// Refuse at once.
	Refuse Mode = "refuse"
)

// Times that are not for users to set.
const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 30 * time.Second
	// giveUp is how many creations have to fail in a row until those who wait
	// are told instead of being left to their deadlines.
	giveUp = 3
	// lookTime is how often ages are looked at.
	lookTime = time.Second
)

// EmptyError says that nothing is warm and when to try again. It is of class
// ResourceExhausted.
type EmptyError struct {
	Template   string
	RetryAfter time.Duration
}

// Error is a whole sentence for the caller.
func (e *EmptyError) Error() string {
	return fmt.Sprintf("no sandbox of template %s is free: try again in %s", e.Template, e.RetryAfter.Round(time.Millisecond))
}

// Unwrap gives the class.
func (e *EmptyError) Unwrap() error { return errdefs.ErrResourceExhausted }

// Options of a Pool; all but Log are needed. The functions are called
// concurrently and without a lock.
type Options[T comparable] struct {
	Name     string
	Settings Settings
	// Create makes one that is ready to be used. When its context ends, it
	// leaves nothing.
	Create func(context.Context) (T, error)
	// Probe says whether a warm one can be handed out.
	Probe func(context.Context, T) error
	// Destroy gets rid of one that was never handed out.
	Destroy func(context.Context, T, string)
	Log     *slog.Logger
}

// Stats is the state of a pool at one moment.
type Stats struct {
	Settings                        Settings
	Creating, Warm, Leased, Waiting int
	Created, Failed                 int64
	LastError                       string
}

type item[T any] struct {
	value T
	made  time.Time
}

// Pool is made by New and filled while Run runs.
type Pool[T comparable] struct {
	opts Options[T]
	log  *slog.Logger
	wake chan struct{} // holds one: look again

	mu       sync.Mutex
	warm     []item[T] // oldest first
	taken    map[T]struct{}
	creating int
	wait     queue[T]
	stopped  bool
	created  int64
	failed   int64
	lastErr  string
	inRow    int       // failures since the last success
	notUntil time.Time // the next creation, after a failure
	tokens   float64   // of Rate
	filled   time.Time // when tokens was right
	work     sync.WaitGroup
}

// New returns an empty pool.
func New[T comparable](o Options[T]) *Pool[T] {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Pool[T]{opts: o, log: o.Log, wake: make(chan struct{}, 1), taken: map[T]struct{}{}, tokens: 1, filled: time.Now()}
}

// Run keeps the pool filled until ctx ends and then waits for what is under
// way. Warm ones are left alone: see Rest.
func (p *Pool[T]) Run(ctx context.Context) error {
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			p.stop()
			p.work.Wait()
			return nil
		case <-p.wake:
		case <-t.C:
		}
		t.Reset(p.look(ctx))
	}
}

// Rest returns what is warm and forgets it; to be called after Run.
func (p *Pool[T]) Rest() []T {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]T, 0, len(p.warm))
	for _, w := range p.warm {
		out = append(out, w.value)
	}
	p.warm = nil
	return out
}

// Take hands out one that nobody used, and says whether it was warm. It is
// counted until Gone. Those who wait are served by turns of their callers.
func (p *Pool[T]) Take(ctx context.Context, caller string, mode Mode) (value T, warm bool, err error) {
	for {
		v, ok, err := p.pop()
		if err != nil {
			return v, false, err
		}
		if !ok {
			break
		}
		if err := p.opts.Probe(ctx, v); err != nil {
			p.reject(ctx, v, "probe: "+err.Error())
			if ctx.Err() != nil {
				return value, false, context.Cause(ctx)
			}
			continue
		}
		return v, true, nil
	}
	v, err := p.await(ctx, caller, mode)
	return v, false, err
}

// pop takes the oldest warm one, unless somebody waits before.
func (p *Pool[T]) pop() (v T, ok bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return v, false, fmt.Errorf("the pool of template %s is stopping: %w", p.opts.Name, errdefs.ErrUnavailable)
	}
	if len(p.warm) == 0 || p.wait.len() > 0 {
		return v, false, nil
	}
	v = p.warm[0].value
	p.warm = p.warm[1:]
	p.taken[v] = struct{}{}
	p.kick()
	return v, true, nil
}

// reject destroys one that was popped and did not pass its probe.
func (p *Pool[T]) reject(ctx context.Context, v T, why string) {
	p.log.Warn("warm sandbox not usable", "template", p.opts.Name, "error", why)
	p.opts.Destroy(ctx, v, why)
	p.Gone(v)
}

// await queues up for one that is to be created.
func (p *Pool[T]) await(ctx context.Context, caller string, mode Mode) (v T, err error) {
	p.mu.Lock()
	if len(p.warm) > 0 && p.wait.len() == 0 && !p.stopped { // it came between pop and here
		p.mu.Unlock()
		v, _, err = p.Take(ctx, caller, mode)
		return v, err
	}
	full := len(p.warm)+p.creating+len(p.taken) >= p.opts.Settings.Max
	if p.stopped || mode == Refuse || mode == Cold && full {
		err = &EmptyError{Template: p.opts.Name, RetryAfter: p.retryAfter()}
		p.mu.Unlock()
		return v, err
	}
	w := p.wait.push(caller)
	p.kick()
	p.mu.Unlock()
	select {
	case got := <-w.ready:
		return got.value, got.err
	case <-ctx.Done():
	}
	p.mu.Lock()
	removed := p.wait.remove(w)
	p.mu.Unlock()
	if !removed { // it was served at the same moment
		if got := <-w.ready; got.err == nil {
			p.offer(got.value, time.Now())
		}
	}
	return v, context.Cause(ctx)
}

// retryAfter is a guess from how fast sandboxes are made.
func (p *Pool[T]) retryAfter() time.Duration {
	d := time.Duration(float64(time.Second) / max(p.opts.Settings.Rate, 0.1))
	if until := time.Until(p.notUntil); until > d {
		d = until
	}
	return max(d, 50*time.Millisecond)
}

// offer gives one that is free to who waits first, or keeps it warm. It is in
// taken before.
func (p *Pool[T]) offer(v T, made time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.offerLocked(v, made)
}

func (p *Pool[T]) offerLocked(v T, made time.Time) {
	if w := p.wait.pop(); w != nil {
		p.taken[v] = struct{}{}
		w.ready <- served[T]{value: v} // it has room
		return
	}
	delete(p.taken, v)
	p.warm = append(p.warm, item[T]{v, made})
}

// Gone says that nothing is left of one that was taken.
func (p *Pool[T]) Gone(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, v)
	p.kick()
}

// Adopt puts a warm one back after a restart; false if it is over Max.
func (p *Pool[T]) Adopt(v T, made time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.warm)+p.creating+len(p.taken) >= p.opts.Settings.Max {
		return false
	}
	p.offerLocked(v, made)
	return true
}

// AdoptTaken counts one that is in use after a restart, even over Max.
func (p *Pool[T]) AdoptTaken(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[v] = struct{}{}
}

// Stats tells the state.
func (p *Pool[T]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{
		Settings: p.opts.Settings, Creating: p.creating, Warm: len(p.warm), Leased: len(p.taken), Waiting: p.wait.len(),
		Created: p.created, Failed: p.failed, LastError: p.lastErr,
	}
}

// kick makes Run look again soon. It never blocks.
func (p *Pool[T]) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
