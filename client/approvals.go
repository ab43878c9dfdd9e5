package client

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// approvalDefault is the server's limit if List and Select set none.
const approvalDefault = 1000

// ApprovalFilter selects approval requests. The zero value selects all of them.
type ApprovalFilter struct {
	// State filters by v1.Approval.State, such as "pending".
	State string
	// Before is the id of a request: only older requests are listed. Limit is the maximum number of
	// requests; 0 means 1000.
	Before string
	Limit  int
}

// List lists the newest 1000 approval requests, newest first. state filters by v1.Approval.State,
// such as "pending"; "" lists all states. Operators see the requests of all callers, other callers
// only their own.
func (s Approvals) List(ctx context.Context, state string) ([]v1.Approval, error) {
	return s.Select(ctx, ApprovalFilter{State: state})
}

// Select lists approval requests, newest first. The server answers in pages of at most 1000
// requests and about 1 MiB. Select reads as many as Limit needs. If f.Before does not exist, the
// error is of class NotFound.
func (s Approvals) Select(ctx context.Context, f ApprovalFilter) ([]v1.Approval, error) {
	all := []v1.Approval{}
	f.Limit = max(f.Limit, 0)
	for want := cmp.Or(f.Limit, approvalDefault); ; {
		k := newCall(http.MethodGet, "approvals").set("state", f.State).set("before", f.Before)
		l, err := callJSON[v1.List[v1.Approval]](ctx, s.c, k.number("limit", int64(f.Limit)))
		all = append(all, l.Items...)
		if err != nil || !l.Truncated || len(l.Items) == 0 || len(all) >= want {
			return all, err
		}
		f.Before, f.Limit = l.Items[len(l.Items)-1].ID, want-len(all)
	}
}

// Get returns one approval request. If it does not exist, the error is of class NotFound.
func (s Approvals) Get(ctx context.Context, id string) (v1.Approval, error) {
	return callJSON[v1.Approval](ctx, s.c, newCall(http.MethodGet, "approvals", id))
}

// Answer answers an approval request and returns it as decided. Only operators may answer.
// If the request is already decided, the error is of class FailedPrecondition.
func (s Approvals) Answer(ctx context.Context, id string, a v1.ApprovalAnswer) (v1.Approval, error) {
	return callJSONWithBody[v1.Approval](ctx, s.c, newCall(http.MethodPost, "approvals", id, "answer"), a, nil)
}

// Watch calls event with type "asked" for every pending request, and then for each change,
// until ctx ends or event returns an error. The calls are made one at a time from this goroutine.
//
// If the connection is cut or the server is away, Watch reconnects and then reports the
// decisions it missed. Each "asked" and each "decided" is reported once. It returns early only if
// no server answers at the start or the server refuses the request.
func (s Approvals) Watch(ctx context.Context, event func(v1.ApprovalEvent) error) error {
	w := &approvalWatch{client: s.c, event: event, pending: map[string]bool{}}
	return watchWithRetry(ctx, &w.progress, w.listen)
}

// approvalWatch is the state that Approvals.Watch keeps across connections.
type approvalWatch struct {
	progress
	client  *Client
	event   func(v1.ApprovalEvent) error
	pending map[string]bool
}

// listen reads events from one connection.
func (w *approvalWatch) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return w.client.readEvents(
		ctx,
		newCall(http.MethodGet, "approvals", "events"),
		func(kind string, data []byte) (bool, error) {
			w.events++
			if kind == "listening" {
				return false, w.deliverMissed(ctx)
			}
			var e v1.ApprovalEvent
			if err := json.Unmarshal(data, &e); err != nil {
				return true, fmt.Errorf("%w: invalid JSON in event: %w", ErrLost, err)
			}
			return false, w.deliver(e)
		},
	)
}

// deliver calls event, unless this event was already reported.
func (w *approvalWatch) deliver(e v1.ApprovalEvent) error {
	known := w.pending[e.Approval.ID]
	switch e.Type {
	case "asked":
		if known {
			return nil
		}
		w.pending[e.Approval.ID] = true
	case "decided":
		if !known {
			return nil
		}
		delete(w.pending, e.Approval.ID)
	}
	w.callbackErr = w.event(e)
	return w.callbackErr
}

// deliverMissed reports the decisions that were made while no connection was open.
func (w *approvalWatch) deliverMissed(ctx context.Context) error {
	if len(w.pending) == 0 {
		return nil
	}
	list, err := w.client.Approvals.List(ctx, "pending")
	if err != nil {
		return err
	}
	still := map[string]bool{}
	for _, a := range list {
		still[a.ID] = true
	}
	for id := range w.pending {
		if still[id] {
			continue
		}
		a, err := w.client.Approvals.Get(ctx, id) // The list is bounded, so a request that is not in it may still be pending.
		switch {
		case errdefs.IsNotFound(err):
			delete(w.pending, id)
			continue
		case err != nil:
			return err
		case a.State == "pending":
			continue
		}
		if err := w.deliver(v1.ApprovalEvent{Type: "decided", Approval: a}); err != nil {
			return err
		}
	}
	return nil
}
