package egress

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Limits of the queue of connection records.
const (
	queueSize = 4096
	// callerQueue bounds the queued records of one caller.
	callerQueue = queueSize / 4
	batchSize   = 256
	// writeTime bounds the write of one batch.
	writeTime = 10 * time.Second
	// reportEvery is the interval between records of missed connections.
	reportEvery = time.Minute
	// A sandbox gets recordRate records a second after a burst of recordBurst. More
	// connections are only counted: a sandbox that connects in a loop would fill the disk.
	recordRate  = 20
	recordBurst = 1000
)

// auditor records connections without delaying them. Some connections are not recorded: when
// the log is too slow, when one sandbox makes too many, or when the caller's share of the log is
// used up. It counts those and records the number. One goroutine writes the records until close.
type auditor struct {
	audit  *audit.Log // nil if nothing is recorded
	log    *slog.Logger
	queue  chan audit.Record
	stop   chan struct{}
	done   chan struct{}
	missed atomic.Int64 // not attributed to a sandbox

	mu       sync.Mutex
	queued   map[string]int             // queued records by caller
	known    map[string]*auditedSandbox // by sandbox
	finished []audit.Record             // reports about sandboxes that have ended
}

// auditedSandbox holds the counters of one sandbox.
type auditedSandbox struct {
	caller  string
	rate    *rate.Limiter
	skipped int64
}

func newAuditor(records *audit.Log, log *slog.Logger) *auditor {
	a := &auditor{
		audit:  records,
		log:    log,
		queue:  make(chan audit.Record, queueSize),
		stop:   make(chan struct{}),
		done:   make(chan struct{}),
		queued: map[string]int{},
		known:  map[string]*auditedSandbox{},
	}
	go a.run() // close waits for it
	return a
}

// close writes the queued records and stops the goroutine. Later connections are not recorded.
func (a *auditor) close() {
	close(a.stop)
	<-a.done
}

// register starts the accounting of a sandbox. It keeps existing counters.
func (a *auditor) register(sandbox, caller string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.known[sandbox] != nil {
		return
	}
	a.known[sandbox] = &auditedSandbox{caller: caller, rate: rate.NewLimiter(recordRate, recordBurst)}
}

func (a *auditor) forget(sandbox string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if s := a.known[sandbox]; s != nil && s.skipped > 0 {
		a.finished = append(a.finished, s.missedRecord(sandbox))
	}
	delete(a.known, sandbox)
}

// missedRecord returns a record of the skipped connections and resets the count.
func (s *auditedSandbox) missedRecord(sandbox string) audit.Record {
	n := s.skipped
	s.skipped = 0
	return audit.Record{
		Kind: audit.KindEvent, Action: "egress.missed", Caller: s.caller, Sandbox: sandbox, Uncharged: s.caller == caller.LocalCaller,
		Error: fmt.Sprintf(
			"%d connections were not recorded: they came faster than %d a second, "+
				"%d of the caller's were waiting, or the caller's share of the log was used up",
			n,
			recordRate,
			callerQueue,
		),
	}
}

// admit returns the caller of the sandbox and reports whether a connection is recorded. If so, it
// counts the record as queued.
func (a *auditor) admit(sandbox string) (owner string, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := a.known[sandbox]
	if s == nil {
		a.queued[""]++
		return "", true
	}
	if a.queued[s.caller] >= callerQueue || !s.rate.Allow() ||
		s.caller != caller.LocalCaller && a.audit.AdmitConnection(s.caller) != nil {
		s.skipped++
		return s.caller, false
	}
	a.queued[s.caller]++
	return s.caller, true
}

// unqueue counts one record of the caller as no longer queued.
func (a *auditor) unqueue(caller string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.queued[caller]--; a.queued[caller] == 0 {
		delete(a.queued, caller)
	}
}

// takeMissed returns the records of connections skipped since the last call.
func (a *auditor) takeMissed() []audit.Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	out := a.finished
	a.finished = nil
	for id, s := range a.known {
		if s.skipped > 0 {
			out = append(out, s.missedRecord(id))
		}
	}
	return out
}

// enqueue queues the record of a connection and never blocks.
func (a *auditor) enqueue(c netpolicy.Connection) {
	if a.audit == nil {
		return
	}
	owner, ok := a.admit(c.Session)
	if !ok {
		return
	}
	r := audit.Record{
		Kind: audit.KindEgress, Action: "egress", Caller: owner, Uncharged: owner == caller.LocalCaller,
		Sandbox: c.Session, Verdict: "deny", DurationMS: core.Milliseconds(c.Duration),
		Egress: &audit.Egress{
			Host:     c.Host,
			Port:     c.Port,
			Protocol: c.Protocol,
			Method:   c.Method,
			// Redact now: the call may end, and release its secrets, before the record is written.
			Path:     a.audit.RedactPath(owner, c.Path),
			Address:  c.Address,
			Reason:   c.Reason,
			Sent:     c.Sent,
			Received: c.Received,
		},
	}
	if c.Allowed {
		r.Verdict = "allow"
	}
	select {
	case a.queue <- r:
	default:
		a.unqueue(owner)
		a.missed.Add(1)
	}
}

func (a *auditor) run() {
	defer close(a.done)
	tell := time.NewTicker(reportEvery)
	defer tell.Stop()
	for {
		select {
		case r := <-a.queue:
			a.unqueue(r.Caller)
			a.write(a.fillBatch(r))
		case <-tell.C:
			a.reportMissed()
		case <-a.stop:
			for {
				batch := a.fillBatch()
				if len(batch) == 0 {
					a.reportMissed()
					return
				}
				a.write(batch)
			}
		}
	}
}

func (a *auditor) fillBatch(batch ...audit.Record) []audit.Record {
	for len(batch) < batchSize {
		select {
		case r := <-a.queue:
			a.unqueue(r.Caller)
			batch = append(batch, r)
		default:
			return batch
		}
	}
	return batch
}

// write records a batch. Records that fail are logged and counted as missed.
func (a *auditor) write(batch []audit.Record) {
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	if n, err := a.audit.Events(ctx, batch); err != nil {
		a.log.Error("failed to record connections of sandboxes", "connections", len(batch)-n, "error", err)
		a.missed.Add(int64(len(batch) - n))
	}
}

// reportMissed records how many connections were not recorded.
func (a *auditor) reportMissed() {
	if a.audit == nil {
		return
	}
	if batch := a.takeMissed(); len(batch) > 0 {
		a.write(batch)
	}
	missed := a.missed.Swap(0)
	if missed == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	err := a.audit.Event(
		ctx,
		audit.Record{
			Action: "egress.missed",
			Error:  fmt.Sprintf("%d connections of sandboxes were not recorded: the log did not keep up", missed),
		},
	)
	if err != nil {
		a.missed.Add(missed)
	}
}
