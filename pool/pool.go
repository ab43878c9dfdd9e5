// Package pool keeps sandboxes of one template warm: it creates them ahead of demand, probes them
// before it hands them out, and replaces each after a single use.
//
// A pool counts a sandbox before it creates it, so warm, creating and taken sandboxes together
// never exceed Max, except while those that Make has displaced are destroyed. The pool stores
// values of type T; its owner supplies the functions that create, probe and destroy them. A taken
// value never returns: its owner calls Gone when nothing is left of it.
//
// Run fills the pool and waits for every goroutine that creates or destroys. Errors are classed by
// errdefs; an empty pool answers with an *EmptyError. All methods may be called concurrently.
package pool

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Settings of a pool. Min may be zero. Any other field of zero or less takes its default.
type Settings struct {
	// Min is the number to keep warm. Max bounds the sum of warm, creating and taken.
	Min, Max int
	// Rate bounds the creations per second that no caller waits for, so that a refill does not slow
	// calls down. Parallel bounds all concurrent creations.
	Rate     float64
	Parallel int
	// MaxAge is the age at which an unused warm sandbox is replaced. They are replaced one at a
	// time, the new one first if Max leaves room for it.
	MaxAge time.Duration
	// RefillDelay is how long a pool that fell short waits before it refills, so that the sandboxes
	// just taken have the host to themselves. It ends early when no sandbox is taken any more. It
	// never delays a waiting caller. Zero: no delay.
	RefillDelay time.Duration
	// Adaptive adjusts the number of warm sandboxes, between Min and Max, to how many callers
	// arrive during one creation.
	Adaptive bool
}

// Defaults of Settings. The default of Max is Min, but at least 1.
const (
	DefaultRate     = 2.0
	DefaultParallel = 2
	DefaultMaxAge   = time.Hour
)

func (s Settings) withDefaults() Settings {
	s.Min = max(s.Min, 0)
	s.Max = max(s.Max, s.Min, 1)
	if s.Rate <= 0 {
		s.Rate = DefaultRate
	}
	if s.Parallel < 1 {
		s.Parallel = DefaultParallel
	}
	if s.MaxAge <= 0 {
		s.MaxAge = DefaultMaxAge
	}
	return s
}

// Mode says what Take does when no sandbox is warm.
type Mode string

const (
	// Wait for a sandbox until the context ends.
	Wait Mode = "wait"
	// Cold creates a sandbox now, or fails with an *EmptyError at Max.
	Cold Mode = "cold"
	// Refuse fails with an *EmptyError at once.
	Refuse Mode = "refuse"
)

// Times that users cannot set.
const (
	backoffMin = 100 * time.Millisecond
	backoffMax = 30 * time.Second
	// failWaitersAfter is the number of failed creations in a row after which waiting callers get
	// the error instead of waiting for their deadlines.
	failWaitersAfter = 3
	// maintainInterval is how often the pool checks ages and sizes.
	maintainInterval = time.Second
	// shrinkTime is how long there must be too many warm sandboxes before one is destroyed.
	shrinkTime = 5 * time.Second
	// probeTime bounds one probe. A warm sandbox that does not answer within it is destroyed.
	probeTime = 10 * time.Second
)

// EmptyError reports that no sandbox is warm, and when to try again. It is of class
// ResourceExhausted.
type EmptyError struct {
	Template   string
	RetryAfter time.Duration
}

// Error implements error.
func (e *EmptyError) Error() string {
	return fmt.Sprintf("no sandbox of template %s is free: try again in %s", e.Template,
		e.RetryAfter.Round(time.Millisecond))
}

// RetryIn returns when to try again.
func (e *EmptyError) RetryIn() time.Duration { return e.RetryAfter }

// Unwrap returns the errdefs class.
func (e *EmptyError) Unwrap() error { return errdefs.ErrResourceExhausted }

// Options of a Pool. All but Order and Log are required. The pool calls the functions concurrently
// and holds no lock.
type Options[T comparable] struct {
	Name     string
	Settings Settings
	// Create returns a sandbox that is ready for use. If its context ends, it leaves nothing
	// behind.
	Create func(context.Context) (T, error)
	// Probe returns an error if a warm sandbox cannot be handed out.
	Probe func(context.Context, T) error
	// Destroy removes a sandbox that was never handed out. The text is the reason. Its context has
	// no deadline.
	Destroy func(context.Context, T, string)
	// Order is shared by all pools of a host, so that callers take turns across them. Nil: the pool
	// has its own.
	Order *FairOrder
	Log   *slog.Logger
}

// Stats is the state of a pool at one moment.
type Stats struct {
	Settings                        Settings
	Creating, Warm, Leased, Waiting int
	Created, Failed                 int64
	LastError                       string
	// Failing says that a caller would get LastError: the last creations failed and nothing is warm.
	// A pool that keeps nothing warm and has no waiting caller does not create, so it is failing only
	// until it may try again.
	Failing bool
	// Target is the number of sandboxes that should be warm now.
	Target int
}

// item is a sandbox that is free, or on its way to a caller.
type item[T any] struct {
	value T
	made  time.Time
	gen   int // the generation; see Replace
}

// Pool keeps sandboxes warm while Run runs. New makes one.
type Pool[T comparable] struct {
	opts Options[T] // mu guards Settings and Create
	log  *slog.Logger
	wake chan struct{} // holds one; wakes Run

	mu       sync.Mutex
	gen      int
	warm     []item[T]      // oldest first; empty while a caller waits
	taken    map[T]struct{} // handed out, or being destroyed
	creating int
	making   int // by Make
	retiring int
	wait     queue[T]
	stopped  bool
	created  int64
	failed   int64
	lastErr  string
	failures int       // since the last success
	notUntil time.Time // no creation before this time, after a failure
	tokens   float64   // of the token bucket for Rate
	filled   time.Time // when tokens was last computed
	enough   time.Time // the last time at which no more were warm than wanted
	short    time.Time // since when fewer are warm than wanted; zero: enough are
	demand   demand
	removed  error // not nil: nothing is handed out any more, for this reason
	work     sync.WaitGroup
}

// New returns an empty pool. Run fills it.
func New[T comparable](o Options[T]) *Pool[T] {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Order == nil {
		o.Order = &FairOrder{}
	}
	o.Settings = o.Settings.withDefaults()
	return &Pool[T]{opts: o, wait: queue[T]{order: o.Order}, log: o.Log, wake: make(chan struct{}, 1),
		taken: map[T]struct{}{}, tokens: 1, filled: time.Now()}
}

// Run keeps the pool filled until ctx ends, and then waits for creations and removals under way. It
// leaves warm sandboxes alone: see Rest.
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
		t.Reset(p.maintain(ctx))
	}
}

// Rest removes the warm sandboxes from the pool and returns them. Call it after Run has returned.
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

// Take returns an unused sandbox and reports whether it was warm. A warm one has just passed a
// probe. The sandbox counts toward Max until Gone. Waiting callers are served in the order of
// Options.Order.
func (p *Pool[T]) Take(ctx context.Context, caller string, mode Mode) (value T, warm bool, err error) {
	for again := false; ; again = true {
		got, warm, err := p.get(ctx, caller, mode, again)
		if err != nil {
			return value, false, err
		}
		if !warm {
			return got.value, false, nil
		}
		// The probe outlives the caller: a sandbox is not destroyed because its caller went away.
		probing, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
		err = p.opts.Probe(probing, got.value)
		cancel()
		switch {
		case err != nil:
			p.log.Warn("probe of a warm sandbox failed; destroying it", "template", p.opts.Name, "error", err)
			p.discard(ctx, got.value, "probe: "+err.Error())
		case ctx.Err() != nil:
			p.putBack(ctx, got)
			return value, false, context.Cause(ctx)
		default:
			return got.value, true, nil
		}
	}
}

// get removes the oldest warm sandbox from the pool, or queues for one that is to be created. again
// is true if the same caller asked before, so that demand counts it once.
func (p *Pool[T]) get(ctx context.Context, caller string, mode Mode, again bool) (got item[T], warm bool, err error) {
	if ctx.Err() != nil {
		return got, false, context.Cause(ctx)
	}
	p.mu.Lock()
	if p.stopped {
		p.mu.Unlock()
		return got, false, fmt.Errorf("the pool of template %s is stopping: %w", p.opts.Name, errdefs.ErrUnavailable)
	}
	if err := p.removed; err != nil {
		p.mu.Unlock()
		return got, false, err
	}
	if !again {
		now := time.Now()
		wanted := p.wanted(now)
		if p.demand.arrived(now); len(p.warm) == 0 {
			p.demand.missed(now, wanted)
		}
	}
	if len(p.warm) > 0 {
		got, p.warm = p.warm[0], p.warm[1:]
		p.taken[got.value] = struct{}{}
		p.wakeUp()
		p.mu.Unlock()
		return got, true, nil
	}
	// A sandbox being created, or a free place, may already be promised to another waiter.
	full := len(p.taken)+p.making+max(p.creating, p.wait.len()) >= p.opts.Settings.Max
	if mode == Refuse || mode == Cold && full {
		err = &EmptyError{Template: p.opts.Name, RetryAfter: p.retryAfter()}
		p.mu.Unlock()
		return got, false, err
	}
	w := p.wait.push(caller)
	p.wakeUp()
	p.mu.Unlock()
	select {
	case served := <-w.ready:
		return served.item, false, served.err
	case <-ctx.Done():
		return got, false, p.giveUp(ctx, w)
	}
}

// giveUp leaves the queue and returns the context's cause, with the last creation error if there is
// one.
func (p *Pool[T]) giveUp(ctx context.Context, w *waiter[T]) error {
	p.mu.Lock()
	removed := p.wait.remove(w)
	err := context.Cause(ctx)
	if p.failures > 0 {
		err = fmt.Errorf("%w; last failed creation: %s", err, p.lastErr)
	}
	p.mu.Unlock()
	if !removed { // it was served at the same moment
		if served := <-w.ready; served.err == nil {
			p.putBack(ctx, served.item)
		}
	}
	return err
}

// putBack returns a sandbox to the pool whose caller went away before it used it.
func (p *Pool[T]) putBack(ctx context.Context, i item[T]) {
	p.mu.Lock()
	current := i.gen == p.gen
	if current {
		p.offer(i)
	}
	p.mu.Unlock()
	if !current {
		p.discard(ctx, i.value, changed)
	}
}

// discard destroys a sandbox that counts as taken. It does not delay the caller.
func (p *Pool[T]) discard(ctx context.Context, v T, why string) {
	ctx = context.WithoutCancel(ctx)
	destroy := func() {
		p.opts.Destroy(ctx, v, why)
		p.Gone(v)
	}
	p.mu.Lock()
	if p.stopped { // Run has returned and waits for no more work
		p.mu.Unlock()
		destroy()
		return
	}
	p.work.Go(destroy) // Run waits for it
	p.mu.Unlock()
}

// retryAfter estimates when a sandbox will be free, from the creation rate.
func (p *Pool[T]) retryAfter() time.Duration {
	d := time.Duration(float64(time.Second) / max(p.opts.Settings.Rate, 0.1))
	if until := time.Until(p.notUntil); until > d {
		d = until
	}
	return max(d, 50*time.Millisecond)
}

// offer gives a free sandbox to the next waiter, or keeps it warm. The caller holds mu.
func (p *Pool[T]) offer(i item[T]) {
	if w := p.wait.pop(); w != nil {
		p.taken[i.value] = struct{}{}
		w.ready <- served[T]{item: i} // its buffer holds one, so this never blocks
		return
	}
	delete(p.taken, i.value)
	at := len(p.warm)
	for at > 0 && p.warm[at-1].made.After(i.made) { // only for a sandbox that was put back or adopted
		at--
	}
	p.warm = slices.Insert(p.warm, at, i)
}

// count returns the number of sandboxes that exist or are being created. The caller holds mu.
func (p *Pool[T]) count() int { return len(p.warm) + p.creating + p.making + len(p.taken) }

// Gone reports that nothing is left of a taken sandbox. It no longer counts toward Max.
func (p *Pool[T]) Gone(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, v)
	p.wakeUp()
}

// Waiting reports whether a caller would still wait after more sandboxes than now have been made.
// If so, turn orders such callers across pools: the lowest was served longest ago.
func (p *Pool[T]) Waiting(more int) (turn uint64, waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wait.turn(more)
}

// Yield destroys the oldest warm sandbox and returns when nothing is left of it. It returns false
// if none is warm. A full host calls it to make room for a waiting caller. The pool refills as soon
// as there is room.
func (p *Pool[T]) Yield(ctx context.Context, why string) bool {
	p.mu.Lock()
	if len(p.warm) == 0 || p.stopped {
		p.mu.Unlock()
		return false
	}
	old := p.warm[0].value
	p.warm = p.warm[1:]
	p.taken[old] = struct{}{}
	p.mu.Unlock()
	p.opts.Destroy(context.WithoutCancel(ctx), old, why)
	p.Gone(old)
	return true
}

// Adopt adds a warm sandbox after a restart, if its template has not changed. It returns false if
// the pool is at Max or removed.
func (p *Pool[T]) Adopt(v T, made time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count() >= p.opts.Settings.Max || p.removed != nil {
		return false
	}
	p.offer(item[T]{v, made, p.gen})
	return true
}

// AdoptTaken counts a sandbox that is in use after a restart, even beyond Max.
func (p *Pool[T]) AdoptTaken(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken[v] = struct{}{}
}

// Stats returns the current state.
func (p *Pool[T]) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	target := p.wanted(now)
	return Stats{
		Settings: p.opts.Settings, Creating: p.creating + p.making, Warm: len(p.warm), Leased: len(p.taken), Waiting: p.wait.len(),
		Created: p.created, Failed: p.failed, LastError: p.lastErr, Target: target,
		Failing: p.failures >= failWaitersAfter && len(p.warm) == 0 && (target > 0 || now.Before(p.notUntil)),
	}
}

// wakeUp makes Run check the pool soon. It never blocks.
func (p *Pool[T]) wakeUp() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
