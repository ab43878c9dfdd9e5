package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// EventQuery selects service events.
type EventQuery struct {
	// After skips events up to and including this id. 0 starts at the oldest event that is kept, -1
	// at the next one.
	After int64
	// Since skips older events. It is an age such as "10m" or an RFC 3339 time.
	Since string
	// Job selects the events of one job.
	Job string
	// Follow keeps reporting new events until ctx ends.
	Follow bool
}

// Events calls event for each service event that q selects. Operators get the events of all
// callers, other callers only their own. The calls are made one at a time from this goroutine.
//
// With Follow, Events reconnects if the connection is cut or the server is away, and continues
// after the last event. An event of type "gap" reports that some were dropped. It returns early
// only if event fails, no server answers at the start, or the server refuses the request.
func (c *Client) Events(ctx context.Context, q EventQuery, event func(v1.ServiceEvent) error) error {
	w := &eventWatch{client: c, q: q, event: event}
	return watchWithRetry(ctx, &w.progress, w.listen)
}

// eventWatch is the state that Events keeps across connections.
type eventWatch struct {
	progress
	client *Client
	q      EventQuery
	event  func(v1.ServiceEvent) error
}

// listen reads events from one connection.
func (w *eventWatch) listen(ctx context.Context) error {
	w.ended = !w.q.Follow // without Follow there is only one connection
	k := newCall(http.MethodGet, "events").set("since", w.q.Since).set("job", w.q.Job).flag("follow", w.q.Follow)
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
			return true, fmt.Errorf("%w: invalid JSON in event: %w", ErrLost, err)
		}
		w.events++
		w.q.After = e.ID
		w.callbackErr = w.event(e)
		return false, w.callbackErr
	})
}
