package httpguard

import (
	"math"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

const (
	// refusalRate and refusalBurst are the default rate and burst. Clients that work as intended stay
	// far below.
	refusalRate  = 50
	refusalBurst = 100
	// refusalBytes of a body, read before or after the refusal, count as one more refusal.
	refusalBytes = 256 << 10
	// maxRefusalDelay is the longest delay of one answer. The client's connection counts against
	// its caller's share during the delay.
	maxRefusalDelay = 5 * time.Second
	// maxRefusalDebt is the longest time for which one request with many refusals delays later ones.
	maxRefusalDebt = time.Minute
	// maxPacedCallers is the number of callers above which those without recent refusals are
	// forgotten.
	maxPacedCallers = 1024
)

// RefusalPacer delays the answers to refused requests of callers who get too many of them. A
// refusal costs the service CPU time; a client that repeats refused requests as fast as they are
// answered would otherwise take that time from other callers. Operators are never delayed. All
// requests without a caller share one rate. Its methods may be called concurrently.
type RefusalPacer struct {
	// Rate is how many refusals per second, and Burst how many at once, a caller gets without delay.
	// They must not change after the first use.
	Rate  rate.Limit
	Burst int

	mu      sync.Mutex
	callers map[string]*pacedCaller
	waiting int // anonymous requests that wait
}

// pacedCaller counts the refusals of one caller. Its lock makes a reservation and its cancellation
// one step: a cancellation does not give back what others reserved after it.
type pacedCaller struct {
	mu sync.Mutex
	*rate.Limiter
}

// NewRefusalPacer returns a RefusalPacer that no caller has used.
func NewRefusalPacer() *RefusalPacer {
	return &RefusalPacer{Rate: refusalRate, Burst: refusalBurst, callers: map[string]*pacedCaller{}}
}

// Wait counts n refusals of the caller and returns when the answer may be sent, at most
// maxRefusalDelay later. It does not return early if the client leaves; otherwise clients could
// avoid the delay.
func (p *RefusalPacer) Wait(principal caller.Principal, n int) {
	p.WaitAmong(principal, n, math.MaxInt)
}

// WaitAmong is Wait, unless the request has no caller and most other such requests wait. It then
// returns false at once.
func (p *RefusalPacer) WaitAmong(principal caller.Principal, n, most int) bool {
	if principal.Operator {
		return true
	}
	delay := p.reserve(principal.Caller, n)
	if delay == 0 {
		return true
	}
	if principal.Caller == "" {
		if !p.addWaiting(1, most) {
			return false
		}
		defer p.addWaiting(-1, math.MaxInt)
	}
	time.Sleep(delay)
	return true
}

// Allow charges one refusal to the caller if it is within the rate, and reports whether it is.
// Operators are always within it.
func (p *RefusalPacer) Allow(principal caller.Principal) bool {
	if principal.Operator {
		return true
	}
	l := p.limiter(principal.Caller)
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Allow()
}

// reserve charges n refusals to the caller, in steps of at most the burst, and returns the delay of
// the answer. The first step is charged only up to the longest delay, the others up to
// maxRefusalDebt.
func (p *RefusalPacer) reserve(caller string, n int) (delay time.Duration) {
	l, most := p.limiter(caller), maxRefusalDelay
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for ; n > 0; n -= p.Burst {
		r := l.ReserveN(now, min(n, p.Burst))
		delay = r.DelayFrom(now)
		if delay > most {
			r.CancelAt(now)
			break
		}
		most = maxRefusalDebt
	}
	return min(delay, maxRefusalDelay)
}

// addWaiting adds n to the waiting anonymous requests, unless they would be more than most.
func (p *RefusalPacer) addWaiting(n, most int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > 0 && p.waiting > most-n {
		return false
	}
	p.waiting += n
	return true
}

// limiter returns the limiter of a caller, or of requests without a caller if the name is empty.
func (p *RefusalPacer) limiter(caller string) *pacedCaller {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, ok := p.callers[caller]; ok {
		return l
	}
	if len(p.callers) >= maxPacedCallers {
		for name, l := range p.callers {
			if l.Tokens() >= float64(p.Burst) {
				delete(p.callers, name)
			}
		}
	}
	l := &pacedCaller{Limiter: rate.NewLimiter(p.Rate, p.Burst)}
	p.callers[caller] = l
	return l
}
