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

// listener is one subscription. Its channel is closed if it is too slow.
type listener struct {
	caller string
	events chan Event
}

// Subscribe calls sink with the events of caller, or of all callers if "", until ctx ends; then it
// returns nil. First it sends the pending requests as "asked", oldest first. It returns an error of
// sink. A sink that lags over 1024 events behind gets an error of class ResourceExhausted. When the
// gate stops, the error is of class Unavailable.
func (g *Gate) Subscribe(ctx context.Context, caller string, sink func(Event) error) error {
	l := &listener{caller: caller, events: make(chan Event, listenBuffer)}
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
		case e, ok := <-l.events:
			if !ok {
				return fmt.Errorf("the listener is over %d events behind: read faster, or list and subscribe again: %w",
					listenBuffer, errdefs.ErrResourceExhausted)
			}
			if err := sink(e); err != nil {
				return err
			}
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
	e := Event{Type: kind, Request: r}
	for l := range g.listeners {
		if l.caller != "" && l.caller != r.Caller {
			continue
		}
		select {
		case l.events <- e:
		default:
			delete(g.listeners, l)
			close(l.events)
		}
	}
	g.hook.enqueue(e)
}
