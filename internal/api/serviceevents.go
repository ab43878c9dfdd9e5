package api

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

func (s *Server) eventRoutes() []route {
	return []route{{
		method: "GET", path: "/v1/events", handle: s.serviceEvents, stream: true,
		summary: "Stream events, with follow also new ones, with job those of a job; Last-Event-ID continues a stream",
		query:   []string{"after", "since", "job", "follow"}, also: []answerForm{{formEvents, v1.ServiceEvent{}}},
	}}
}

// serviceEvents sends the kept events, or those after Last-Event-ID. With follow it also sends new
// events, until the client leaves or a hand-over begins.
func (s *Server) serviceEvents(w http.ResponseWriter, r *http.Request, p caller.Principal) error {
	q := queryOf(r, "after", "since", "job", "follow")
	if q.err != nil {
		return q.err
	}
	if _, err := form(r, formEvents); err != nil {
		return err
	}
	query, err := eventQuery(r, q.text("after"), q.text("since"))
	if err != nil {
		return err
	}
	query.Job = q.text("job")
	if query.Follow = q.boolean("follow"); q.err != nil {
		return q.err
	}
	return follow(s, w, r,
		func(ctx context.Context, sink func(v1.ServiceEvent) error) error {
			return s.opts.Engine.Events.Watch(ctx, p, query, sink)
		},
		func(out *sse) error { return out.write([]byte(": listening\n\n")) },
		func(out *sse, e v1.ServiceEvent) error {
			if err := out.write([]byte("id: " + strconv.FormatInt(e.ID, 10) + "\n")); err != nil {
				return err
			}
			return out.send(e.Type, e)
		})
}

// eventQuery returns where to begin: after an event (by header or query), or at a time (RFC 3339,
// or a duration before now).
func eventQuery(r *http.Request, after, since string) (q eventhub.Query, err error) {
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		after = last
	}
	if after != "" {
		if q.After, err = strconv.ParseInt(after, 10, 64); err != nil {
			return q, &usererror.InvalidError{Field: "after",
				Message: fmt.Sprintf("is %q: use the id of an event, or -1 for those to come", after)}
		}
	}
	if since == "" {
		return q, nil
	}
	if ago, err := time.ParseDuration(since); err == nil && ago >= 0 {
		q.Since = time.Now().Add(-ago)
		return q, nil
	}
	if q.Since, err = time.Parse(time.RFC3339, since); err != nil {
		return q, &usererror.InvalidError{Field: "since",
			Message: fmt.Sprintf("is %q: use a time such as 10m or 2026-01-02T15:04:05Z", since)}
	}
	return q, nil
}
