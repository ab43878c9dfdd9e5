// Package pool keeps sandboxes of one template warm: created before they are
// asked for, probed before they are handed out, used once, replaced in time.
//
// It counts what is being created before it is created, so warm, creating and
// taken together never exceed Max. It knows nothing of leases, stores or
// drivers: what it keeps is a T that its owner creates, probes and destroys.
// What was taken never comes back: its owner says Gone when nothing is left of
// it.
//
// Run keeps the pool filled and waits for every goroutine that creates or
// destroys. Errors are classed by errdefs; an empty pool answers with an
// *EmptyError.
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

// Settings of a pool. Min may be zero; of the others, what is zero or less
// becomes its default.
type Settings struct {
	// Min is how many are kept warm, Max how many exist at once: warm, being
	// created and taken.
	Min, Max int
	// Rate bounds creations per second that nobody waits for, so that filling
	// up does not slow down calls; Parallel bounds all creations at once.
	Rate     float64
	Parallel int
	// MaxAge replaces a warm one that nobody took: one at a time, and the new
	// one first where Max leaves room for it.
	MaxAge time.Duration
	// Settle is for how long a pool that ran short leaves the host to what was
	// taken before it fills up. Who waits is served at once all the same, and
	// what nobody has any more is waited for no longer. Zero: it never waits.
	Settle time.Duration
	// Adaptive keeps as many warm as come while one is made, from Min to Max.
	Adaptive bool
}

// Defaults of Settings. That of Max is Min, and 1 at least.
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
	// tellAfter is how many creations have to fail in a row until those who wait
	// are told instead of being left to their deadlines.
	tellAfter = 3
	// lookTime is how often ages are looked at.
	lookTime = time.Second
	// shrinkTime is how long there have to be too many warm ones until one goes.
	shrinkTime = 5 * time.Second
	// probeTime bounds a probe, whatever else bounds it: a warm sandbox that
	// does not answer for so long is of no use to anybody.
	probeTime = 10 * time.Second
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
	// Destroy gets rid of one that was never handed out; the text says why.
	// Its context does not end before it has.
	Destroy func(context.Context, T, string)
	// Turns are shared by the pools of a host; nil: this pool has its own.
	Turns *Turns
	Log   *slog.Logger
}

// Stats is the state of a pool at one moment.
type Stats struct {
	Settings                        Settings
	Creating, Warm, Leased, Waiting int
	Created, Failed                 int64
	LastError                       string
	// Target is how many are to be warm now.
	Target int
}

// item is one that is free or on its way to somebody.
type item[T any] struct {
	value T
	made  time.Time
	gen   int // see Replace
}

// Pool is made by New and filled while Run runs.
type Pool[T comparable] struct {
	opts Options[T] // Settings and Create are guarded by mu
	log  *slog.Logger
	wake chan struct{} // holds one: look again

	mu       sync.Mutex
	gen      int
	warm     []item[T]      // oldest first; empty while somebody waits
	taken    map[T]struct{} // handed out, or being destroyed
	creating int
	retiring int
	wait     queue[T]
	stopped  bool
	created  int64
	failed   int64
	lastErr  string
	inRow    int       // failures since the last success
	notUntil time.Time // the next creation, after a failure
	tokens   float64   // of Rate
	filled   time.Time // when tokens was right
	enough   time.Time // when there were last no more warm than wanted
	short    time.Time // since when fewer are warm than wanted; zero: they are not
	demand   demand
	removed  error // why nothing is handed out any more
	work     sync.WaitGroup
}

// New returns an empty pool.
func New[T comparable](o Options[T]) *Pool[T] {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Turns == nil {
		o.Turns = &Turns{}
	}
	o.Settings = o.Settings.withDefaults()
	return &Pool[T]{opts: o, wait: queue[T]{turns: o.Turns}, log: o.Log, wake: make(chan struct{}, 1), taken: map[T]struct{}{}, tokens: 1, filled: time.Now()}
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

// Take hands out one that nobody used, and says whether it was warm; a warm
// one has passed a probe just now. It is counted until Gone. Those who wait
// are served by turns of their callers.
func (p *Pool[T]) Take(ctx context.Context, caller string, mode Mode) (value T, warm bool, err error) {
	for again := false; ; again = true {
		got, warm, err := p.get(ctx, caller, mode, again)
		if err != nil {
			return value, false, err
		}
		if !warm {
			return got.value, false, nil
		}
		// A caller that goes away meanwhile is no reason to destroy it.
		probing, cancel := context.WithTimeout(context.WithoutCancel(ctx), probeTime)
		err = p.opts.Probe(probing, got.value)
		cancel()
		switch {
		case err != nil:
			p.log.Warn("warm sandbox not usable", "template", p.opts.Name, "error", err)
			p.discard(ctx, got.value, "probe: "+err.Error())
		case ctx.Err() != nil:
			p.back(ctx, got)
			return value, false, context.Cause(ctx)
		default:
			return got.value, true, nil
		}
	}
}

// get takes the oldest warm one, or queues up for one that is to be created.
// again: it is not the first time for who asks.
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
		if p.demand.came(now); len(p.warm) == 0 {
			p.demand.missed(now, wanted)
		}
	}
	if len(p.warm) > 0 {
		got, p.warm = p.warm[0], p.warm[1:]
		p.taken[got.value] = struct{}{}
		p.kick()
		p.mu.Unlock()
		return got, true, nil
	}
	// One that is being created, or a free place, may be another's already.
	full := len(p.taken)+max(p.creating, p.wait.len()) >= p.opts.Settings.Max
	if mode == Refuse || mode == Cold && full {
		err = &EmptyError{Template: p.opts.Name, RetryAfter: p.retryAfter()}
		p.mu.Unlock()
		return got, false, err
	}
	w := p.wait.push(caller)
	p.kick()
	p.mu.Unlock()
	select {
	case served := <-w.ready:
		return served.item, false, served.err
	case <-ctx.Done():
		return got, false, p.giveUp(ctx, w)
	}
}

// giveUp leaves the queue, and tells what is known of why it took so long.
func (p *Pool[T]) giveUp(ctx context.Context, w *waiter[T]) error {
	p.mu.Lock()
	removed := p.wait.remove(w)
	err := context.Cause(ctx)
	if p.inRow > 0 {
		err = fmt.Errorf("%w; the last try to make a sandbox: %s", err, p.lastErr)
	}
	p.mu.Unlock()
	if !removed { // it was served at the same moment
		if served := <-w.ready; served.err == nil {
			p.back(ctx, served.item)
		}
	}
	return err
}

// back takes one back that was on its way to somebody who went away, and so
// was never used.
func (p *Pool[T]) back(ctx context.Context, i item[T]) {
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

// discard destroys one that is counted as taken, on the pool's time and not on
// the caller's.
func (p *Pool[T]) discard(ctx context.Context, v T, why string) {
	ctx = context.WithoutCancel(ctx)
	destroy := func() {
		p.opts.Destroy(ctx, v, why)
		p.Gone(v)
	}
	p.mu.Lock()
	if p.stopped { // nobody waits for work any more
		p.mu.Unlock()
		destroy()
		return
	}
	p.work.Go(destroy) // Run waits for it
	p.mu.Unlock()
}

// retryAfter is a guess from how fast sandboxes are made.
func (p *Pool[T]) retryAfter() time.Duration {
	d := time.Duration(float64(time.Second) / max(p.opts.Settings.Rate, 0.1))
	if until := time.Until(p.notUntil); until > d {
		d = until
	}
	return max(d, 50*time.Millisecond)
}

// offer gives one that is free to who is next, or keeps it warm. The caller
// holds mu.
func (p *Pool[T]) offer(i item[T]) {
	if w := p.wait.pop(); w != nil {
		p.taken[i.value] = struct{}{}
		w.ready <- served[T]{item: i} // it has room
		return
	}
	delete(p.taken, i.value)
	at := len(p.warm)
	for at > 0 && p.warm[at-1].made.After(i.made) { // only what came back or was adopted
		at--
	}
	p.warm = slices.Insert(p.warm, at, i)
}

// count is how many there are. The caller holds mu.
func (p *Pool[T]) count() int { return len(p.warm) + p.creating + len(p.taken) }

// Gone says that nothing is left of one that was taken.
func (p *Pool[T]) Gone(v T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.taken, v)
	p.kick()
}

// Waiting says whether somebody waits for one when so many more than now will
// have been made, and if so, when that caller had a turn last: the lower, the
// longer ago.
func (p *Pool[T]) Waiting(more int) (turn uint64, waiting bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.wait.turn(more)
}

// Yield destroys the oldest warm one and returns when nothing is left of it;
// false if none is warm. It is for a host that needs the room for somebody who
// waits. The pool fills up again as soon as there is room.
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

// Adopt puts a warm one back after a restart, made by a template that has not
// changed; false if it is over Max.
func (p *Pool[T]) Adopt(v T, made time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.count() >= p.opts.Settings.Max || p.removed != nil {
		return false
	}
	p.offer(item[T]{v, made, p.gen})
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
		Created: p.created, Failed: p.failed, LastError: p.lastErr, Target: p.wanted(time.Now()),
	}
}

// kick makes Run look again soon. It never blocks.
func (p *Pool[T]) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}
