package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// EventQuery says which events are told.
type EventQuery struct {
	// After is the id of the last event that is known: 0 begins with the oldest
	// that is kept, -1 with the next one.
	After int64
	// Since leaves out what is older: how long ago, "10m", or a time as RFC 3339.
	Since string
	// Follow goes on with what happens until ctx ends.
	Follow bool
}

// Events calls event for what happened, and with Follow for what happens: the
// caller's own, for operators everything. With Follow, a connection that is
// cut, and a server that is away for a while, are asked again and go on after
// the last event; an event "gap" says that some were missed. Only no server
// from the start, what the server refuses, and an error of event end it early.
func (c *Client) Events(ctx context.Context, q EventQuery, event func(v1.ServiceEvent) error) error {
	w := &eventWatch{client: c, q: q, event: event}
	return relisten(ctx, &w.progress, w.listen)
}

// eventWatch is what a listener knows over several connections.
type eventWatch struct {
	progress
	client *Client
	q      EventQuery
	event  func(v1.ServiceEvent) error
}

// listen listens over one connection.
func (w *eventWatch) listen(ctx context.Context) error {
	w.ended = !w.q.Follow // then one connection is all
	k := newCall(http.MethodGet, "events").set("since", w.q.Since).flag("follow", w.q.Follow)
	if w.q.After != 0 {
		k.set("after", strconv.FormatInt(w.q.After, 10))
	}
	return w.client.readEvents(ctx, k, func(kind string, data []byte) (bool, error) {
		if kind == "end" {
			w.ended = true
			return true, nil
		}
		var e v1.ServiceEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return true, fmt.Errorf("%w: an event that is no JSON: %w", ErrLost, err)
		}
		w.heard++
		w.q.After = e.ID
		w.failed = w.event(e)
		return false, w.failed
	})
}
