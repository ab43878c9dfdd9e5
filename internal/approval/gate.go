package approval

import (
	"container/heap"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/internal/store"
)

// Defaults of Options.
const (
	DefaultMaxPending          = 10_000
	DefaultMaxPendingPerCaller = 100
	DefaultExpiry              = 10 * time.Minute
	// DefaultKeep is how long decided requests can be looked at.
	DefaultKeep = 7 * 24 * time.Hour
	// DefaultGrant is how long an answer for a session is good.
	DefaultGrant = 24 * time.Hour

	// MaxList bounds a list.
	MaxList = 1000

	forgetEvery = 10 * time.Minute
	retryEvery  = 5 * time.Second // after the store failed
)

// Check says whether an approver's input can replace the one of the call. Its
// error is what the approver is told.
type Check func(ctx context.Context, r Request, input json.RawMessage) error

// Options of a gate. Store is needed; the rest has defaults.
type Options struct {
	Store *store.Store
	Log   *slog.Logger
	// Now is the time of day; time.Now unless set.
	Now func() time.Time
	// MaxPending bounds the questions that wait at once, MaxPendingPerCaller
	// those of one caller.
	MaxPending, MaxPendingPerCaller int
	// Free is a caller who has no bound of their own; "" is nobody.
	Free string
	// Expiry is how long a question waits whose rule says nothing.
	Expiry time.Duration
	// Keep is how long decided requests are kept, Grant how long an answer for
	// a session is good.
	Keep, Grant time.Duration
	// Check looks at the input of answers that modify it; without one, any JSON
	// object will do.
	Check Check
	// Webhook is told of every event, if it has an address.
	Webhook Webhook
}

// Gate asks, and remembers what was asked. All its methods may be called
// concurrently; Run must be running for questions to expire by themselves.
//
// What it answers stands in the store first: the death of the process loses no
// question, no answer and no budget.
type Gate struct {
	opts    Options
	store   *store.Store
	log     *slog.Logger
	now     func() time.Time
	hook    *hook
	stopped chan struct{} // closed when Run ends
	wake    chan struct{} // the next expiry may have changed

	mu        sync.Mutex
	pending   map[string]*entry
	queue     expiries
	callers   map[string]int
	listeners map[*listener]struct{}
}

// entry is a pending request. ready is false until the store has it: nobody is
// told before.
type entry struct {
	request Request
	kept
	ready bool
	index int           // in the queue
	done  chan struct{} // closed when it is decided
}

// New makes a gate over what the store knows. Questions whose time is over
// expire at once.
func New(ctx context.Context, o Options) (*Gate, error) {
	if o.Store == nil {
		return nil, fmt.Errorf("an approval gate needs a store: %w", errdefs.ErrInvalidArgument)
	}
	o.defaults()
	h, err := newHook(o.Webhook, o.Log)
	if err != nil {
		return nil, err
	}
	g := &Gate{
		opts: o, store: o.Store, log: o.Log, now: o.Now, hook: h,
		stopped: make(chan struct{}), wake: make(chan struct{}, 1),
		pending: map[string]*entry{}, callers: map[string]int{}, listeners: map[*listener]struct{}{},
	}
	rows, err := o.Store.Approvals(ctx, store.ApprovalFilter{State: string(Pending)})
	if err != nil {
		return nil, err
	}
	for _, row := range rows {
		e, err := load(row)
		if err != nil {
			return nil, err
		}
		e.ready = true
		g.add(e)
	}
	if err := g.expire(ctx); err != nil {
		return nil, err
	}
	return g, nil
}

func (o *Options) defaults() {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	for _, d := range []struct {
		v *int
		d int
	}{{&o.MaxPending, DefaultMaxPending}, {&o.MaxPendingPerCaller, DefaultMaxPendingPerCaller}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{{&o.Expiry, DefaultExpiry}, {&o.Keep, DefaultKeep}, {&o.Grant, DefaultGrant}} {
		if *d.v <= 0 {
			*d.v = d.d
		}
	}
}

// Run lets questions expire, forgets what is old and tells the webhook, until
// ctx ends. Then waits and subscriptions end with an error of class
// Unavailable; the questions stay. It may be called once.
func (g *Gate) Run(ctx context.Context) error {
	defer close(g.stopped)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.timer(ctx) })
	group.Go(func() error { return g.hook.run(ctx) })
	return group.Wait()
}

// timer sleeps until the next question expires.
func (g *Gate) timer(ctx context.Context) error {
	t := time.NewTimer(0)
	defer t.Stop()
	var forgot time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		case <-g.wake:
		}
		wait := g.untilNext()
		if wait <= 0 {
			if err := g.expire(ctx); err != nil && ctx.Err() == nil {
				g.log.Error("cannot let approvals expire", "error", err)
				wait = retryEvery
			} else {
				wait = g.untilNext()
			}
		}
		if now := g.now(); now.Sub(forgot) >= forgetEvery {
			forgot = now
			if err := g.forget(ctx, now); err != nil && ctx.Err() == nil {
				g.log.Error("cannot forget old approvals", "error", err)
			}
		}
		t.Reset(max(min(wait, forgetEvery), 0))
	}
}

func (g *Gate) untilNext() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.queue) == 0 {
		return forgetEvery
	}
	return g.queue[0].request.Expires.Sub(g.now())
}

// expire ends the questions whose time is over.
func (g *Gate) expire(ctx context.Context) error {
	for {
		g.mu.Lock()
		var due *entry
		// One that the store has not got yet is the business of its Decide.
		if len(g.queue) > 0 && g.queue[0].ready && !g.queue[0].request.Expires.After(g.now()) {
			due = g.queue[0]
		}
		g.mu.Unlock()
		if due == nil {
			return nil
		}
		if _, err := g.end(ctx, due.request.ID, Expired); err != nil {
			return err
		}
	}
}

func (g *Gate) forget(ctx context.Context, now time.Time) error {
	return errors.Join(
		g.store.ForgetApprovals(ctx, now.Add(-g.opts.Keep), now.Add(-g.opts.Grant)),
		g.store.ForgetBudgets(ctx, now.Add(-g.opts.Keep)),
	)
}

// add takes an entry into the memory. g.mu is held, or nobody knows g yet.
func (g *Gate) add(e *entry) {
	g.pending[e.request.ID] = e
	g.callers[e.request.Caller]++
	heap.Push(&g.queue, e)
	if e.index == 0 {
		select {
		case g.wake <- struct{}{}:
		default:
		}
	}
}

// remove is idempotent. g.mu is held.
func (g *Gate) remove(e *entry) {
	if g.pending[e.request.ID] != e {
		return
	}
	delete(g.pending, e.request.ID)
	heap.Remove(&g.queue, e.index)
	if g.callers[e.request.Caller]--; g.callers[e.request.Caller] == 0 {
		delete(g.callers, e.request.Caller)
	}
	close(e.done)
}

// expiries is a heap of entries, the next to expire first.
type expiries []*entry

func (q expiries) Len() int           { return len(q) }
func (q expiries) Less(i, j int) bool { return q[i].request.Expires.Before(q[j].request.Expires) }
func (q expiries) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push is for package heap.
func (q *expiries) Push(x any) {
	e := x.(*entry)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop is for package heap.
func (q *expiries) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return e
}
