package engine

import (
	"context"
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
	// maxOpen bounds the shells whose ends are told.
	maxOpen = 4096
)

// eventHub keeps the latest events in a ring. Readers hold a place in it and no
// queue: who is slower than the ring misses what went, and is told so. Telling
// waits for nobody.
type eventHub struct {
	mu    sync.Mutex
	ring  []v1.ServiceEvent          // by id modulo maxEvents
	first int64                      // the oldest that is kept
	next  int64                      // the id of the next one
	more  chan struct{}              // closed when there is a next one
	open  map[string]v1.ServiceEvent // shells that were told to have started
}

// newEventHub begins with an id that is higher than all of earlier processes,
// none of which tells a million events a second.
func newEventHub() *eventHub {
	id := time.Now().UnixMicro()
	return &eventHub{ring: make([]v1.ServiceEvent, maxEvents), first: id, next: id, more: make(chan struct{}), open: map[string]v1.ServiceEvent{}}
}

// tell adds an event. A shell's end is told once, with what its beginning said,
// and at the latest with its sandbox's.
func (h *eventHub) tell(ev v1.ServiceEvent) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch ev.Type {
	case "shell.started":
		if len(h.open) < maxOpen {
			h.open[ev.Shell] = ev
		}
	case "shell.ended":
		began, known := h.open[ev.Shell]
		if !known {
			return // it was told, or its beginning was not
		}
		delete(h.open, ev.Shell)
		ev.Caller, ev.Sandbox = began.Caller, began.Sandbox
	case "sandbox.gone":
		for id, began := range h.open {
			if began.Sandbox == ev.Sandbox {
				delete(h.open, id)
				h.add(v1.ServiceEvent{Type: "shell.ended", Caller: began.Caller, Sandbox: began.Sandbox, Shell: id, Reason: "its sandbox ended"})
			}
		}
	}
	h.add(ev)
	close(h.more)
	h.more = make(chan struct{})
}

// add puts an event into the ring. The caller holds mu.
func (h *eventHub) add(ev v1.ServiceEvent) {
	if len(ev.Reason) > maxReason {
		ev.Reason = strings.ToValidUTF8(ev.Reason[:maxReason], "")
	}
	ev.ID, ev.At = h.next, time.Now().UTC()
	h.ring[h.next%maxEvents] = ev
	h.next++
	h.first = max(h.first, h.next-maxEvents)
}

// after gives what came after an event, whether something is missing between,
// and a channel that is closed when there is more.
func (h *eventHub) after(id int64) (list []v1.ServiceEvent, gap bool, more <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	from := id + 1
	if from < h.first || from > h.next { // of before, or of a clock that was ahead
		from, gap = h.first, true
	}
	for ; from < h.next; from++ {
		list = append(list, h.ring[from%maxEvents])
	}
	return list, gap, h.more
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
		list, gap, more := e.events.after(id)
		if gap && told {
			if err := tell(v1.ServiceEvent{ID: list0(list, id) - 1, At: time.Now().UTC(), Type: "gap"}); err != nil {
				return err
			}
		}
		told = true
		for _, ev := range list {
			id = ev.ID
			if !call.Operator && (ev.Caller == "" || ev.Caller != call.Caller) || ev.At.Before(q.Since) {
				continue
			}
			if err := tell(ev); err != nil {
				return err
			}
		}
		if !q.Follow {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// list0 is the id of the first of a list, or else what comes after id.
func list0(list []v1.ServiceEvent, id int64) int64 {
	if len(list) == 0 {
		return id + 1
	}
	return list[0].ID
}

// noteStep tells what the scheduler did with a sandbox.
func (e *Engine) noteStep(s scheduler.Step) {
	e.events.tell(v1.ServiceEvent{
		Type: "sandbox." + string(s.State), Sandbox: s.ID, Template: s.Template, Caller: s.Caller, Workspace: s.Workspace, Reason: s.Reason,
	})
}
