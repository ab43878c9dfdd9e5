package api

import (
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

// Defaults of BodyBudget, and the least that lets every route take its largest body.
const (
	DefaultBodies       = 192 << 20
	DefaultCallerBodies = 64 << 20
)

const (
	// operatorShare and smallShare are the fractions of the budget that are kept for operators, and
	// for bodies of at most smallHeld bytes.
	operatorShare = 4
	smallShare    = 8
	smallHeld     = 64 << 10
)

// BodyBudget bounds the memory that bodies of requests take, in bytes. A zero field takes the
// default.
type BodyBudget struct {
	// Total is for all callers, Caller for each of them.
	Total, Caller int64
}

// budget counts the bytes that bodies hold. A body is charged before memory for it is allocated,
// and until its handler has returned. Its methods may be called concurrently.
type budget struct {
	total, caller int64

	mu   sync.Mutex
	held int64
	of   map[string]int64 // by caller; without those that hold nothing
	peak int64            // for tests
}

func newBudget(o BodyBudget) *budget {
	b := &budget{total: DefaultBodies, caller: DefaultCallerBodies, of: map[string]int64{}}
	if o.Total > 0 {
		b.total = o.Total
	}
	if o.Caller > 0 {
		b.caller = o.Caller
	}
	return b
}

// check says whether n more bytes fit for a body that holds have. b.mu is held.
func (b *budget) check(p engine.Principal, have, n int64) error {
	if b.of[p.Caller]+n > b.caller {
		return overBudget("your requests", "requests.caller_bodies", b.caller)
	}
	limit := b.total
	if !p.Operator {
		limit -= b.total / operatorShare
	}
	if have+n > smallHeld {
		limit -= b.total / smallShare
	}
	if b.held+n > limit {
		return overBudget("all requests", "requests.bodies", b.total)
	}
	return nil
}

func overBudget(whose, key string, limit int64) error {
	e := bodyProblem(errdefs.ErrResourceExhausted,
		"the bodies of %s are at their limit of %d bytes (%s): try again in %s", whose, limit, key, retryTime)
	e.retry = retryTime
	return e
}

// room says whether a body of n bytes would fit now. Nothing is reserved.
func (b *budget) room(p engine.Principal, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.check(p, 0, n)
}

// take charges n more bytes to a body that holds have.
func (b *budget) take(p engine.Principal, have, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.check(p, have, n); err != nil {
		return err
	}
	b.held += n
	b.of[p.Caller] += n
	b.peak = max(b.peak, b.held)
	return nil
}

// give gives n bytes back.
func (b *budget) give(p engine.Principal, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.of[p.Caller] -= n; b.of[p.Caller] == 0 {
		delete(b.of, p.Caller)
	}
}

// pace is how fast a body that is held in memory has to come.
type pace struct {
	// stall is how long nothing may come, most how long all of it may take. After grace, rate bytes
	// have to have come for each second since the beginning.
	stall, grace, most time.Duration
	rate               int64
}

func defaultPace() pace {
	return pace{stall: 10 * time.Second, grace: 10 * time.Second, most: bodyTime, rate: 64 << 10}
}

// deadline is until when more has to come of a body of which got bytes have come since began.
func (p pace) deadline(began time.Time, got int) time.Time {
	earned := time.Duration(float64(got) / float64(p.rate) * float64(time.Second))
	at := began.Add(min(p.most, p.grace+earned))
	if stalled := time.Now().Add(p.stall); stalled.Before(at) {
		return stalled
	}
	return at
}
