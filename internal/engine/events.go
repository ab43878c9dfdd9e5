package engine

import (
	chain "container/list"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
)

const (
	// maxEvents is how many events are kept for those who come later.
	maxEvents = 4096
	// maxReason bounds the text of one.
	maxReason = 500
	// maxOpen bounds the shells whose ends are told, and maxOpenCaller those of one
	// caller.
	maxOpen       = 4096
	maxOpenCaller = maxOpen / 4
)

// eventHub keeps the latest events. When there are too many, the caller that
// has most loses its oldest. Readers hold a place and no queue: a reader that is
// slower than what is dropped misses it, and is told so. Telling waits for nobody.
type eventHub struct {
	mu     sync.Mutex
	events chain.List               // of *hubEvent, the oldest first
	each   map[string]*callerEvents // by caller; "" are the service's own
	lost   int64                    // the newest that was dropped
	gone   int64                    // the same of callers of whom none is left
	first  int64                    // the first of this process
	next   int64                    // the id of the next one
	more   chan struct{}            // closed when there is a next one

	open   map[string]v1.ServiceEvent // shells that were told to have started
	openOf map[string]int             // how many by caller
}

// hubEvent is an event that is kept.
type hubEvent struct {
	v1.ServiceEvent
	all, own *chain.Element // its places
}

// callerEvents are those of one caller.
type callerEvents struct {
	events chain.List // of *hubEvent, the oldest first
	lost   int64      // the newest that was dropped
}

// newEventHub begins with an id that is higher than all of earlier processes,
// none of which tells a million events a second.
func newEventHub() *eventHub {
	id := time.Now().UnixMicro()
	return &eventHub{each: map[string]*callerEvents{}, first: id, next: id, more: make(chan struct{}), open: map[string]v1.ServiceEvent{}, openOf: map[string]int{}}
}

// publish adds an event. A shell's end is told once, with what its beginning said,
// and at the latest with its sandbox's.
func (h *eventHub) publish(ev v1.ServiceEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch ev.Type {
	case "shell.started":
		if len(h.open) < maxOpen && h.openOf[ev.Caller] < maxOpenCaller {
			h.open[ev.Shell] = ev
			h.openOf[ev.Caller]++
		}
	case "shell.ended":
		began, known := h.open[ev.Shell]
		if !known {
			return // it was told, or its beginning was not
		}
		h.closeShell(began)
		ev.Caller, ev.Sandbox = began.Caller, began.Sandbox
	case "sandbox.gone":
		for id, began := range h.open {
			if began.Sandbox == ev.Sandbox {
				h.closeShell(began)
				h.add(v1.ServiceEvent{Type: "shell.ended", Caller: began.Caller, Sandbox: began.Sandbox, Shell: id, Reason: "its sandbox ended"})
			}
		}
	}
	h.add(ev)
	close(h.more)
	h.more = make(chan struct{})
}

// closeShell forgets a shell whose end is told. mu is held.
func (h *eventHub) closeShell(began v1.ServiceEvent) {
	delete(h.open, began.Shell)
	if h.openOf[began.Caller]--; h.openOf[began.Caller] == 0 {
		delete(h.openOf, began.Caller)
	}
}

// add keeps an event, and drops one where there are too many. mu is held.
func (h *eventHub) add(ev v1.ServiceEvent) {
	if len(ev.Reason) > maxReason {
		ev.Reason = strings.ToValidUTF8(ev.Reason[:maxReason], "")
	}
	ev.ID, ev.At = h.next, time.Now().UTC()
	h.next++
	c := h.each[ev.Caller]
	if c == nil {
		c = &callerEvents{lost: h.gone}
		h.each[ev.Caller] = c
	}
	e := &hubEvent{ServiceEvent: ev}
	e.all, e.own = h.events.PushBack(e), c.events.PushBack(e)
	if h.events.Len() > maxEvents {
		h.dropOldest()
	}
}

// dropOldest drops the oldest event of the caller that has most. mu is held.
func (h *eventHub) dropOldest() {
	var most *callerEvents
	for _, c := range h.each {
		if most == nil || c.events.Len() > most.events.Len() {
			most = c
		}
	}
	old := hubEventAt(most.events.Front())
	h.events.Remove(old.all)
	most.events.Remove(old.own)
	most.lost, h.lost = old.ID, max(h.lost, old.ID)
	if most.events.Len() == 0 {
		h.gone = max(h.gone, old.ID)
		delete(h.each, old.Caller)
	}
}

func hubEventAt(at *chain.Element) *hubEvent {
	return at.Value.(*hubEvent) //nolint:errcheck,forcetypeassert // nothing else is in the lists
}

// eventBatch are the events after one.
type eventBatch struct {
	list []v1.ServiceEvent
	// gap says that some before from are missing. from is the first's id, or what
	// the next one's will be; last is the id to go on after.
	gap        bool
	from, last int64
	more       <-chan struct{} // closed when there is more
}

// since returns the events after one that a call may see.
func (h *eventHub) since(call Call, id int64) eventBatch {
	h.mu.Lock()
	defer h.mu.Unlock()
	events, lost := &h.events, h.lost
	if !call.Operator {
		events, lost = &chain.List{}, h.gone
		if c := h.each[call.Caller]; c != nil && call.Caller != "" {
			events, lost = &c.events, c.lost
		}
	}
	n := eventBatch{gap: id < lost, from: h.next, last: h.next - 1, more: h.more}
	if id+1 < h.first || id+1 > h.next { // of before, or of a clock that was ahead
		id, n.gap = h.first-1, true
	}
	for at := events.Back(); at != nil && hubEventAt(at).ID > id; at = at.Prev() {
		n.list = append(n.list, hubEventAt(at).ServiceEvent)
		n.from = hubEventAt(at).ID
	}
	slices.Reverse(n.list)
	return n
}

// last is the id of the latest event.
func (h *eventHub) last() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next - 1
}

// EventQuery says which events are wanted: those after After, where negative
// is from now on and 0 all that are kept; not older than Since; with Follow also
// those to come.
type EventQuery struct {
	After  int64
	Since  time.Time
	Follow bool
}

// Events calls tell for events, in order, the caller's own or for operators
// all. Who is too slow gets an event "gap" where some are missing. It ends with
// ctx, with an error of tell, or, unless Follow is set, when all were told.
func (e *Engine) Events(ctx context.Context, call Call, q EventQuery, tell func(v1.ServiceEvent) error) error {
	id := q.After
	if id < 0 {
		id = e.events.last()
	}
	told := q.After > 0
	for {
		news := e.events.since(call, id)
		if news.gap && told {
			if err := tell(v1.ServiceEvent{ID: news.from - 1, At: time.Now().UTC(), Type: "gap"}); err != nil {
				return err
			}
		}
		told = true
		for _, ev := range news.list {
			if ev.At.Before(q.Since) {
				continue
			}
			if err := tell(ev); err != nil {
				return err
			}
		}
		if id = news.last; !q.Follow {
			return nil
		}
		select {
		case <-news.more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// publishStateChange tells what the scheduler did with a sandbox.
func (e *Engine) publishStateChange(s scheduler.Step) {
	e.events.publish(v1.ServiceEvent{
		Type: "sandbox." + string(s.State), Sandbox: s.ID, Template: s.Template, Caller: s.Caller, Workspace: s.Workspace, Reason: s.Reason,
	})
}
