package approval

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
)

// listenBuffer is how many events a listener may lag behind.
const listenBuffer = 1024

// listener is one subscription. The gate's lock guards events and late.
type listener struct {
	caller string
	events []*Event      // not yet taken; shared between listeners
	late   bool          // too slow, and removed from the gate
	wake   chan struct{} // has a value if events or late changed
}

// add queues an event, or marks the listener as late if its queue is full.
func (l *listener) add(e *Event) {
	if l.late = len(l.events) >= listenBuffer; !l.late {
		l.events = append(l.events, e)
	}
	select {
	case l.wake <- struct{}{}:
	default: // it has not yet seen the last change
	}
}

// Subscribe calls sink with the events of caller, or of all callers if "", until ctx ends; then it
// returns nil. First it sends the pending requests as "asked", oldest first. It returns an error of
// sink. A sink that lags over 1024 events behind gets an error of class ResourceExhausted. When the
// gate stops, the error is of class Unavailable.
func (g *Gate) Subscribe(ctx context.Context, caller string, sink func(Event) error) error {
	l := &listener{caller: caller, wake: make(chan struct{}, 1)}
	first := g.listen(l)
	defer func() {
		g.mu.Lock()
		delete(g.listeners, l)
		g.mu.Unlock()
	}()
	for _, r := range first {
		if ctx.Err() != nil {
			return nil
		}
		if err := sink(Event{Type: "asked", Request: r}); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.stopped:
			return fmt.Errorf("the service is stopping: %w", errdefs.ErrUnavailable)
		case <-l.wake:
			if err := g.forward(l, sink); err != nil {
				return err
			}
		}
	}
}

// forward sends the queued events of a listener. It returns an error if the listener is late.
func (g *Gate) forward(l *listener, sink func(Event) error) error {
	for {
		g.mu.Lock()
		var next *Event
		if len(l.events) > 0 {
			next, l.events = l.events[0], l.events[1:]
		} else {
			l.events = nil
		}
		late := l.late
		g.mu.Unlock()
		switch {
		case next != nil:
			if err := sink(*next); err != nil {
				return err
			}
		case late:
			return fmt.Errorf("the listener is over %d events behind: read faster, or list and subscribe again: %w",
				listenBuffer, errdefs.ErrResourceExhausted)
		default:
			return nil
		}
	}
}

// listen adds l and returns the pending requests in one step, so that no event is lost or
// duplicated.
func (g *Gate) listen(l *listener) []Request {
	g.mu.Lock()
	defer g.mu.Unlock()
	var first []Request
	for _, e := range g.pending {
		if e.ready && (l.caller == "" || l.caller == e.request.Caller) {
			first = append(first, e.request)
		}
	}
	slices.SortFunc(first, func(a, b Request) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	g.listeners[l] = struct{}{}
	return first
}

// publish sends an event to all listeners without blocking. The caller holds g.mu.
func (g *Gate) publish(kind string, r Request) {
	e := &Event{Type: kind, Request: r}
	for l := range g.listeners {
		if l.caller != "" && l.caller != r.Caller {
			continue
		}
		if l.add(e); l.late {
			delete(g.listeners, l)
		}
	}
	g.hook.enqueue(*e)
}
