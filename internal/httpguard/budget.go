package httpguard

import (
	"sync"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// Bounds of the answers that clients have not read, in bytes: of all callers together, and of each.
const (
	maxAnswers       = 128 << 20
	maxCallerAnswers = 32 << 20
)

// Defaults of NewBodyBudget. They are the smallest values that let every route receive its largest
// body.
const (
	DefaultBodies       = 192 << 20
	DefaultCallerBodies = 64 << 20
)

const (
	// operatorShare and smallShare are the fractions of the budgets for bodies and answers (1/n)
	// that are reserved for operators, and for requests that hold at most smallHeld bytes.
	operatorShare = 4
	smallShare    = 8
	smallHeld     = 64 << 10
)

// Bounds are the bounds of a Budget, in bytes.
type Bounds struct {
	// Total is the bound for all callers together, Caller for each of them.
	Total, Caller int64
	// Operators and Small are the parts of Total that are reserved for operators, and for requests
	// that hold at most 64 KiB.
	Operators, Small int64
	// First lets a caller that holds nothing, and small requests of operators, charge more than Caller,
	// within Total.
	First bool
}

// Budget counts the bytes that requests hold in memory, by caller. Its methods may be called
// concurrently.
type Budget struct {
	bounds Bounds
	refuse func(shared bool, held, limit int64) error

	mu       sync.Mutex
	held     int64
	byCaller map[string]int64 // by caller; callers that hold nothing have no entry
	peak     int64
}

// NewBudget returns a budget that holds nothing. refuse returns the error for a caller over its
// bound, or over the bound of all callers (shared), with the bytes that the caller holds.
func NewBudget(b Bounds, refuse func(shared bool, held, limit int64) error) *Budget {
	return &Budget{bounds: b, refuse: refuse, byCaller: map[string]int64{}}
}

// NewBodyBudget returns a budget for request bodies, of all callers together and of each. Zero
// means the default. Its errors are of type *BodyError.
func NewBodyBudget(total, caller int64) *Budget {
	if total <= 0 {
		total = DefaultBodies
	}
	if caller <= 0 {
		caller = DefaultCallerBodies
	}
	return NewBudget(shares(total, caller), bodiesOver)
}

// NewAnswerBudget returns a budget for answers that clients have not read. One answer of a caller
// may be larger than the caller's bound. Its errors are of type *BodyError.
func NewAnswerBudget() *Budget {
	b := shares(maxAnswers, maxCallerAnswers)
	b.First = true
	return NewBudget(b, answersOver)
}

func shares(total, caller int64) Bounds {
	return Bounds{Total: total, Caller: caller, Operators: total / operatorShare, Small: total / smallShare}
}

// check returns an error unless a request that holds have bytes may charge n more. The caller holds
// b.mu.
func (b *Budget) check(p caller.Principal, have, n int64) error {
	held := b.byCaller[p.Caller]
	exempt := b.bounds.First && (held == 0 || p.Operator && have+n <= smallHeld)
	if held+n > b.bounds.Caller && !exempt {
		return b.refuse(false, held, b.bounds.Caller)
	}
	limit := b.bounds.Total
	if !p.Operator {
		limit -= b.bounds.Operators
	}
	if have+n > smallHeld {
		limit -= b.bounds.Small
	}
	if b.held+n > limit {
		return b.refuse(true, held, b.bounds.Total)
	}
	return nil
}

// Check returns an error unless a request could charge n bytes now. It reserves nothing.
func (b *Budget) Check(p caller.Principal, n int64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.check(p, 0, n)
}

// Charge charges n more bytes to a request that holds have bytes.
func (b *Budget) Charge(p caller.Principal, have, n int64) error {
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

// Release returns n bytes to the budget.
func (b *Budget) Release(p caller.Principal, n int64) {
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

// Account counts the bytes that one request holds in a Budget. Its methods may be called
// concurrently. A nil Account has no bound.
type Account struct {
	b *Budget
	p caller.Principal

	mu   sync.Mutex
	held int64
}

// Charge charges n more bytes to the request.
func (a *Account) Charge(n int64) error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.b.Charge(a.p, a.held, n); err != nil {
		return err
	}
	a.held += n
	return nil
}

// Release returns n bytes to the budget.
func (a *Account) Release(n int64) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held -= n
	a.b.Release(a.p, n)
}

// Close returns all that is charged to the budget.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.b.Release(a.p, a.held)
	a.held = 0
}

// Bounds returns the bounds of the budget.
func (b *Budget) Bounds() Bounds { return b.bounds }

// Held returns the bytes that all requests hold, the most that they ever held together, and the
// number of callers that hold any.
func (b *Budget) Held() (bytes, peak int64, callers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.held, b.peak, len(b.byCaller)
}
