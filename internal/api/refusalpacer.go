package api

import (
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

const (
	// refusalRate and refusalBurst are how many refusals per second, and how many at once, a caller
	// gets without delay. Clients that work as intended stay far below.
	refusalRate  = 50
	refusalBurst = 100
	// refusalBytes of a body, read before or after the refusal, count as one more.
	refusalBytes = 256 << 10
	// maxRefusalDelay is the longest delay of one answer. The client's connection counts against
	// its caller's share during the delay.
	maxRefusalDelay = 5 * time.Second
	// maxPacedCallers is the number of callers above which those without recent refusals are
	// forgotten.
	maxPacedCallers = 1024
)

// RefusalPacer delays the answers to refused requests of callers who get too many of them. A
// refusal costs the service CPU time; a client that repeats refused requests as fast as they are
// answered would otherwise take that time from other callers. Operators are never delayed. All
// requests without a caller share one rate. Its methods may be called concurrently.
type RefusalPacer struct {
	rate  rate.Limit // refusals per second without delay
	burst int        // refusals at once without delay

	mu      sync.Mutex
	callers map[string]*rate.Limiter
}

// NewRefusalPacer returns a RefusalPacer that no caller has used.
func NewRefusalPacer() *RefusalPacer {
	return &RefusalPacer{rate: refusalRate, burst: refusalBurst, callers: map[string]*rate.Limiter{}}
}

// Wait counts n refusals of the caller and returns when the answer may be sent, at most
// maxRefusalDelay later. It does not return early if the client leaves; otherwise clients could
// avoid the delay.
func (p *RefusalPacer) Wait(principal caller.Principal, n int) {
	if principal.Operator {
		return
	}
	r := p.limiter(principal.Caller).ReserveN(time.Now(), min(n, p.burst))
	delay := r.Delay()
	if delay == 0 {
		return
	}
	if delay > maxRefusalDelay { // do not let the debt grow without limit
		r.Cancel()
		delay = maxRefusalDelay
	}
	time.Sleep(delay)
}

// limiter returns the limiter of a caller, or of requests without a caller if the name is empty.
func (p *RefusalPacer) limiter(caller string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l, ok := p.callers[caller]; ok {
		return l
	}
	if len(p.callers) >= maxPacedCallers {
		for name, l := range p.callers {
			if l.Tokens() >= float64(p.burst) {
				delete(p.callers, name)
			}
		}
	}
	l := rate.NewLimiter(p.rate, p.burst)
	p.callers[caller] = l
	return l
}
