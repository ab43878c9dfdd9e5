package api

import (
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// Bounds of the answers that clients have not read, in bytes: of all callers together, and of each.
const (
	maxAnswers       = 128 << 20
	maxCallerAnswers = 32 << 20
)

// Defaults of BodyBudget. They are the smallest values that let every route receive its largest
// body.
const (
	DefaultBodies       = 192 << 20
	DefaultCallerBodies = 64 << 20
)

const (
	// operatorShare and smallShare are the fractions of the budget (1/n) that are reserved for
	// operators, and for bodies of at most smallHeld bytes.
	operatorShare = 4
	smallShare    = 8
	smallHeld     = 64 << 10
)

// BodyBudget bounds the memory of request bodies, in bytes. A zero field means the default.
type BodyBudget struct {
	// Total is the bound for all callers together, Caller for each of them.
	Total, Caller int64
}

// budget counts the bytes that bodies or answers hold. A body is charged before its memory is
// allocated, and until its handler returns. An answer is charged until it is written. All methods
// may be called concurrently.
type budget struct {
	total, caller int64
	answers       bool // counts answers, not bodies

	mu       sync.Mutex
	held     int64
	byCaller map[string]int64 // by caller; callers that hold nothing have no entry
	peak     int64            // for tests
}

func newBudget(o BodyBudget) *budget {
	b := &budget{total: DefaultBodies, caller: DefaultCallerBodies, byCaller: map[string]int64{}}
	if o.Total > 0 {
		b.total = o.Total
	}
	if o.Caller > 0 {
		b.caller = o.Caller
	}
	return b
}

func newAnswerBudget() *budget {
	b := newBudget(BodyBudget{Total: maxAnswers, Caller: maxCallerAnswers})
	b.answers = true
	return b
}

// check returns an error unless a body that holds have bytes may take n more. The caller holds
// b.mu.
func (b *budget) check(p caller.Principal, have, n int64) error {
	if b.byCaller[p.Caller]+n > b.caller {
		return b.over("your requests", "requests.caller_bodies", b.caller)
	}
	limit := b.total
	if !p.Operator {
		limit -= b.total / operatorShare
	}
	if have+n > smallHeld {
		limit -= b.total / smallShare
	}
	if b.held+n > limit {
		return b.over("all requests", "requests.bodies", b.total)
	}
	return nil
}

func (b *budget) over(whose, key string, limit int64) error {
	e := bodyProblem(errdefs.ErrResourceExhausted,
		"the bodies of %s are at their limit of %d bytes (%s): try again in %s", whose, limit, key, retryTime)
	if b.answers {
		e = bodyProblem(errdefs.ErrResourceExhausted,
			"the unread answers to %s are at their limit of %d bytes: read them, or try again in %s", whose, limit, retryTime)
		e.answer = true
	}
	e.retry = retryTime
	return e
}

// checkRoom returns an error unless a body of n bytes would fit now. It reserves nothing.
func (b *budget) checkRoom(p caller.Principal, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.check(p, 0, n)
}

// charge charges n more bytes to a body that holds have bytes.
func (b *budget) charge(p caller.Principal, have, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.check(p, have, n); err != nil {
		return err
	}
	b.held += n
	b.byCaller[p.Caller] += n
	b.peak = max(b.peak, b.held)
	return nil
}

// force charges n bytes and reports whether the budget had room for them.
func (b *budget) force(p caller.Principal, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	err := b.check(p, 0, n)
	b.held += n
	b.byCaller[p.Caller] += n
	b.peak = max(b.peak, b.held)
	return err == nil
}

// release returns n bytes to the budget.
func (b *budget) release(p caller.Principal, n int64) {
	if n == 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held -= n
	if b.byCaller[p.Caller] -= n; b.byCaller[p.Caller] == 0 {
		delete(b.byCaller, p.Caller)
	}
}

// bodyPace is the minimum speed of a body that is held in memory.
type bodyPace struct {
	// stall is the longest pause, and most the longest time for the whole body. After grace, rate
	// bytes must have arrived for each second since the beginning.
	stall, grace, most time.Duration
	rate               int64
}

func defaultPace() bodyPace {
	return bodyPace{stall: 10 * time.Second, grace: 10 * time.Second, most: bodyTime, rate: 64 << 10}
}

// deadline returns when the next bytes must have arrived, for a body that began at began and of
// which got bytes have arrived.
func (p bodyPace) deadline(began time.Time, got int) time.Time {
	earned := time.Duration(float64(got) / float64(p.rate) * float64(time.Second))
	at := began.Add(min(p.most, p.grace+earned))
	if stalled := time.Now().Add(p.stall); stalled.Before(at) {
		return stalled
	}
	return at
}
