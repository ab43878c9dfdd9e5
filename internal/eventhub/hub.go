// Package eventhub keeps the latest events of the service for callers who may see them.
package eventhub

import (
	chain "container/list"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

const (
	// maxEvents bounds the stored events.
	maxEvents = 4096
	// maxReason bounds the reason of an event, in bytes.
	maxReason = 500
	// maxOpen bounds the shells whose end will be reported, maxOpenCaller those of one caller.
	maxOpen       = 4096
	maxOpenCaller = maxOpen / 4
)

// Hub stores the latest events. When it is full, the caller with the most events loses its
// oldest. A reader holds a position and no queue: a reader that is too slow misses dropped events
// and gets an event "gap" instead. Publishing never blocks.
type Hub struct {
	mu     sync.Mutex
	events chain.List               // of *hubEvent, oldest first
	each   map[string]*callerEvents // by caller; "" for the service's own events
	lost   int64                    // id of the newest dropped event
	gone   int64                    // the same, of callers without stored events
	first  int64                    // first id of this process
	next   int64                    // id of the next event
	more   chan struct{}            // closed when an event is added

	open   map[string]v1.ServiceEvent // started shells whose end is not yet reported
	openOf map[string]int             // number of open shells by caller
}

// hubEvent is a stored event.
type hubEvent struct {
	v1.ServiceEvent
	all, own *chain.Element // its elements in both lists
}

// callerEvents holds the events of one caller.
type callerEvents struct {
	events chain.List // of *hubEvent, oldest first
	lost   int64      // id of the newest dropped event
}

// New returns an empty hub. Its first id is the time in microseconds, which exceeds every
// id of earlier processes unless one published a million events a second.
func New() *Hub {
	id := time.Now().UnixMicro()
	return &Hub{
		each:   map[string]*callerEvents{},
		first:  id,
		next:   id,
		more:   make(chan struct{}),
		open:   map[string]v1.ServiceEvent{},
		openOf: map[string]int{},
	}
}

// Publish adds an event. The end of a shell is reported once, with the caller and sandbox of its
// start, and at the latest when its sandbox is gone.
func (h *Hub) Publish(ev v1.ServiceEvent) {
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
			return // already reported, or its start was not
		}
		h.closeShell(began)
		ev.Caller, ev.Sandbox = began.Caller, began.Sandbox
	case "sandbox.gone":
		for id, began := range h.open {
			if began.Sandbox == ev.Sandbox {
				h.closeShell(began)
				h.add(
					v1.ServiceEvent{
						Type:    "shell.ended",
						Caller:  began.Caller,
						Sandbox: began.Sandbox,
						Shell:   id,
						Reason:  "its sandbox ended",
					},
				)
			}
		}
	}
	h.add(ev)
	close(h.more)
	h.more = make(chan struct{})
}

// closeShell removes a shell whose end is reported. The caller holds mu.
func (h *Hub) closeShell(began v1.ServiceEvent) {
	delete(h.open, began.Shell)
	if h.openOf[began.Caller]--; h.openOf[began.Caller] == 0 {
		delete(h.openOf, began.Caller)
	}
}

// add stores an event and drops one if there are too many. The caller holds mu.
func (h *Hub) add(ev v1.ServiceEvent) {
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

// dropOldest drops the oldest event of the caller that has the most. The caller holds mu.
func (h *Hub) dropOldest() {
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
	return at.Value.(*hubEvent) // nothing else is in the lists
}

// eventBatch holds the events after a position.
type eventBatch struct {
	list []v1.ServiceEvent
	// gap reports that events before from are missing. from is the id of the first event, or of the
	// next one to come. last is the position to continue from.
	gap        bool
	from, last int64
	more       <-chan struct{} // closed when there are more events
}

// since returns the events after id that the caller may see.
func (h *Hub) since(p caller.Principal, id int64) eventBatch {
	h.mu.Lock()
	defer h.mu.Unlock()
	events, lost := &h.events, h.lost
	if !p.Operator {
		events, lost = &chain.List{}, h.gone
		if c := h.each[p.Caller]; c != nil && p.Caller != "" {
			events, lost = &c.events, c.lost
		}
	}
	n := eventBatch{gap: id < lost, from: h.next, last: h.next - 1, more: h.more}
	if id+1 < h.first || id+1 > h.next { // id is of an earlier process, or of a clock that was ahead
		id, n.gap = h.first-1, true
	}
	for at := events.Back(); at != nil && hubEventAt(at).ID > id; at = at.Prev() {
		n.list = append(n.list, hubEventAt(at).ServiceEvent)
		n.from = hubEventAt(at).ID
	}
	slices.Reverse(n.list)
	return n
}

// last returns the id of the latest event.
func (h *Hub) last() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.next - 1
}

// Query selects events. After is the id to start after: a negative value means from now on, 0
// all stored events. Since excludes older events, and Job those that are not about this job. Follow
// continues with new events.
type Query struct {
	After  int64
	Since  time.Time
	Job    string
	Follow bool
}

// Watch calls send for each selected event in order. An operator gets all events, another caller
// only their own. An event "gap" replaces events that a slow reader missed. Watch returns when ctx
// ends, when send fails, or after the stored events if Follow is not set.
func (h *Hub) Watch(ctx context.Context, p caller.Principal, q Query, send func(v1.ServiceEvent) error) error {
	id := q.After
	if id < 0 {
		id = h.last()
	}
	reportGap := q.After > 0
	for {
		news := h.since(p, id)
		if news.gap && reportGap {
			if err := send(v1.ServiceEvent{ID: news.from - 1, At: time.Now().UTC(), Type: "gap"}); err != nil {
				return err
			}
		}
		reportGap = true
		for _, ev := range news.list {
			if ev.At.Before(q.Since) || q.Job != "" && ev.Job != q.Job {
				continue
			}
			if err := send(ev); err != nil {
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
