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
	// DefaultKeep is how long decided requests are kept.
	DefaultKeep = 7 * 24 * time.Hour
	// DefaultGrant is how long an answer for a session is valid.
	DefaultGrant = 24 * time.Hour

	// MaxList limits the length of a list.
	MaxList = 1000

	forgetEvery = 10 * time.Minute
	retryEvery  = 5 * time.Second // after a store failure
)

// Check validates an approver's replacement for the input of a call. Its error is returned to the
// approver.
type Check func(ctx context.Context, r Request, input json.RawMessage) error

// Options configures a gate. Store is required; all other fields have defaults.
type Options struct {
	Store *store.Store
	Log   *slog.Logger
	// Now returns the current time (default: time.Now).
	Now func() time.Time
	// MaxPending limits the pending requests, and MaxPendingPerCaller those of one caller.
	MaxPending, MaxPendingPerCaller int
	// Free is a caller without a per-caller limit, or "".
	Free string
	// Expiry is how long a request waits if its rule does not say.
	Expiry time.Duration
	// Keep is how long decided requests are kept. Grant is how long an answer for a session is
	// valid.
	Keep, Grant time.Duration
	// Check validates the input of answers that modify it. If nil, any JSON object is accepted.
	Check Check
	// OnDecided, if set, is called after each decision of a request, including expiry, with its
	// state. It must not block.
	OnDecided func(State)
	// Webhook receives every event if it has a URL.
	Webhook Webhook
}

// Gate creates and tracks approval requests. All methods may be called concurrently. Requests
// expire on time only while Run runs.
//
// Every result is stored before it is returned: a crash of the process loses no request, answer or
// budget charge.
type Gate struct {
	opts    Options
	store   *store.ApprovalStore
	log     *slog.Logger
	now     func() time.Time
	hook    *webhookSender
	stopped chan struct{} // closed when Run ends
	wake    chan struct{} // the next expiry may have changed

	mu        sync.Mutex
	pending   map[string]*pendingRequest
	queue     expiries
	callers   map[string]int
	listeners map[*listener]struct{}
}

// pendingRequest is a pending request. ready is false until it is stored; listeners do not see it
// before.
type pendingRequest struct {
	request Request
	storedDetails
	ready bool
	index int           // index in the queue
	done  chan struct{} // closed when it is decided
}

// New returns a gate with the requests in the store. Overdue requests expire at once.
func New(ctx context.Context, o Options) (*Gate, error) {
	if o.Store == nil {
		return nil, fmt.Errorf("approval: Store is required: %w", errdefs.ErrInvalidArgument)
	}
	o.defaults()
	h, err := newWebhookSender(o.Webhook, o.Log)
	if err != nil {
		return nil, err
	}
	g := &Gate{
		opts: o, store: o.Store.Approvals(), log: o.Log, now: o.Now, hook: h,
		stopped: make(chan struct{}), wake: make(chan struct{}, 1),
		pending: map[string]*pendingRequest{}, callers: map[string]int{}, listeners: map[*listener]struct{}{},
	}
	rows, err := o.Store.Approvals().List(ctx, store.ApprovalFilter{State: string(Pending)})
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

// Run expires requests, deletes old ones and delivers webhook events until ctx ends. Waits and
// subscriptions then end with an error of class Unavailable, and requests stay pending. Run may be
// called once.
func (g *Gate) Run(ctx context.Context) error {
	defer close(g.stopped)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return g.awaitExpiry(ctx) })
	group.Go(func() error { return g.hook.run(ctx) })
	return group.Wait()
}

// awaitExpiry sleeps until the next request expires.
func (g *Gate) awaitExpiry(ctx context.Context) error {
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
				g.log.Error("failed to expire approvals; will retry", "error", err)
				wait = retryEvery
			} else {
				wait = g.untilNext()
			}
		}
		if now := g.now(); now.Sub(forgot) >= forgetEvery {
			forgot = now
			if err := g.forget(ctx, now); err != nil && ctx.Err() == nil {
				g.log.Error("failed to delete old approvals; will retry", "error", err)
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

// expire ends the overdue requests.
func (g *Gate) expire(ctx context.Context) error {
	for {
		g.mu.Lock()
		var due *pendingRequest
		// A request that is not stored yet is handled by its Decide.
		if len(g.queue) > 0 && g.queue[0].ready && !g.queue[0].request.Expires.After(g.now()) {
			due = g.queue[0]
		}
		g.mu.Unlock()
		if due == nil {
			return nil
		}
		if _, err := g.finish(ctx, due.request.ID, Expired); err != nil {
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

// add adds a pending request. The caller holds g.mu, or g is not shared yet.
func (g *Gate) add(e *pendingRequest) {
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

// remove is idempotent. The caller holds g.mu.
func (g *Gate) remove(e *pendingRequest) {
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

// Waiting returns the number of pending requests, and when the oldest of them was created.
func (g *Gate) Waiting() (pending int, oldest time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, e := range g.pending {
		if at := e.request.Created; oldest.IsZero() || at.Before(oldest) {
			oldest = at
		}
	}
	return len(g.pending), oldest
}

// expiries is a heap of requests by expiry, earliest first.
type expiries []*pendingRequest

func (q expiries) Len() int           { return len(q) }
func (q expiries) Less(i, j int) bool { return q[i].request.Expires.Before(q[j].request.Expires) }
func (q expiries) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *expiries) Push(x any) {
	e := x.(*pendingRequest)
	e.index = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *expiries) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return e
}
