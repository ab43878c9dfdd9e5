package engine

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Bounds of what waits to be recorded of connections.
const (
	trailLength = 4096
	trailBatch  = 256
	// trailTime is how long one batch may take.
	trailTime = 10 * time.Second
	// trailEvery is how often it is told how many are missing.
	trailEvery = time.Second
	// A sandbox has so many records a second, after so many at once: else one that
	// connects in a loop would fill the disk. Those beyond are counted.
	trailRate  = 20
	trailBurst = 1000
)

// trail records connections without holding them up. What the log cannot keep
// up with, or one sandbox has too many of, is counted, and the number recorded.
// It has one goroutine, until close.
type trail struct {
	audit  *audit.Log // nil: nothing is recorded
	log    *slog.Logger
	queue  chan audit.Record
	stop   chan struct{}
	done   chan struct{}
	missed atomic.Int64 // of all sandboxes

	mu    sync.Mutex
	known map[string]*trailed // sandboxes that are or were served
	left  []audit.Record      // about those that are not any more
}

// trailed is one sandbox.
type trailed struct {
	caller  string
	rate    *rate.Limiter
	skipped int64
}

func newTrail(a *audit.Log, log *slog.Logger) *trail {
	t := &trail{audit: a, log: log, queue: make(chan audit.Record, trailLength), stop: make(chan struct{}), done: make(chan struct{}), known: map[string]*trailed{}}
	go t.run() // close waits for it
	return t
}

// close records what waits. Nothing is noted any more.
func (t *trail) close() {
	close(t.stop)
	<-t.done
}

// know counts on where a sandbox is known.
func (t *trail) know(sandbox, caller string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known[sandbox] != nil {
		return
	}
	t.known[sandbox] = &trailed{caller: caller, rate: rate.NewLimiter(trailRate, trailBurst)}
}

func (t *trail) forget(sandbox string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.known[sandbox]; s != nil && s.skipped > 0 {
		t.left = append(t.left, s.told(sandbox))
	}
	delete(t.known, sandbox)
}

// told is the record of what was skipped.
func (s *trailed) told(sandbox string) audit.Record {
	n := s.skipped
	s.skipped = 0
	return audit.Record{
		Kind: audit.KindEvent, Action: "egress.missed", Caller: s.caller, Sandbox: sandbox,
		Error: fmt.Sprintf("%d connections were not recorded: they came faster than %d a second", n, trailRate),
	}
}

// admit says whose connection it is, and whether it is recorded.
func (t *trail) admit(sandbox string) (caller string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.known[sandbox]
	if s == nil {
		return "", true
	}
	if !s.rate.Allow() {
		s.skipped++
		return s.caller, false
	}
	return s.caller, true
}

// skipped are the records of what was skipped since.
func (t *trail) skipped() []audit.Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.left
	t.left = nil
	for id, s := range t.known {
		if s.skipped > 0 {
			out = append(out, s.told(id))
		}
	}
	return out
}

// note takes a connection and never waits.
func (t *trail) note(c netpolicy.Connection) {
	if t.audit == nil {
		return
	}
	caller, ok := t.admit(c.Session)
	if !ok {
		return
	}
	r := audit.Record{
		Kind: audit.KindEgress, Action: "egress", Caller: caller, Sandbox: c.Session, Verdict: "deny", DurationMS: ms(c.Duration),
		Egress: &audit.Egress{Host: c.Host, Port: c.Port, Protocol: c.Protocol, Method: c.Method, Path: c.Path, Address: c.Address, Reason: c.Reason, Sent: c.Sent, Received: c.Received},
	}
	if c.Allowed {
		r.Verdict = "allow"
	}
	select {
	case t.queue <- r:
	default:
		t.missed.Add(1)
	}
}

func (t *trail) run() {
	defer close(t.done)
	tell := time.NewTicker(trailEvery)
	defer tell.Stop()
	for {
		select {
		case r := <-t.queue:
			t.write(t.gather(r))
		case <-tell.C:
			t.tell()
		case <-t.stop:
			for {
				batch := t.gather()
				if len(batch) == 0 {
					t.tell()
					return
				}
				t.write(batch)
			}
		}
	}
}

func (t *trail) gather(batch ...audit.Record) []audit.Record {
	for len(batch) < trailBatch {
		select {
		case r := <-t.queue:
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// write records a batch.
func (t *trail) write(batch []audit.Record) {
	ctx, cancel := context.WithTimeout(context.Background(), trailTime)
	defer cancel()
	if n, err := t.audit.Events(ctx, batch); err != nil {
		t.log.Error("connections of sandboxes not recorded", "connections", len(batch)-n, "error", err)
		t.missed.Add(int64(len(batch) - n))
	}
}

// tell records how many are missing.
func (t *trail) tell() {
	if t.audit == nil {
		return
	}
	if batch := t.skipped(); len(batch) > 0 {
		t.write(batch)
	}
	missed := t.missed.Swap(0)
	if missed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), trailTime)
	defer cancel()
	err := t.audit.Event(ctx, audit.Record{Action: "egress.missed", Error: fmt.Sprintf("%d connections of sandboxes were not recorded: the log did not keep up", missed)})
	if err != nil {
		t.missed.Add(missed)
	}
}
