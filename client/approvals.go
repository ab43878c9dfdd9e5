package client

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Approvals lists questions about calls, the newest first: the caller's, or for
// operators everybody's. state is "pending" or another of v1.Approval; "" takes
// all.
func (c *Client) Approvals(ctx context.Context, state string) ([]v1.Approval, error) {
	l, err := ask[v1.List[v1.Approval]](ctx, c, newCall(http.MethodGet, "approvals").set("state", state))
	return l.Items, err
}

// Approval describes one question.
func (c *Client) Approval(ctx context.Context, id string) (v1.Approval, error) {
	return ask[v1.Approval](ctx, c, newCall(http.MethodGet, "approvals", id))
}

// AnswerApproval answers a question; operators may. One that is decided already
// is of class FailedPrecondition.
func (c *Client) AnswerApproval(ctx context.Context, id string, a v1.ApprovalAnswer) (v1.Approval, error) {
	return post[v1.Approval](ctx, c, newCall(http.MethodPost, "approvals", id, "answer"), a, nil)
}

// WatchApprovals calls event for every question that is pending, as "asked",
// and then for what happens, until ctx ends or event fails. A connection that
// is cut and a server that is away are asked again: what was decided meanwhile
// is told then, and no question is told twice. Only no server from the start,
// and what the server refuses, end it early.
func (c *Client) WatchApprovals(ctx context.Context, event func(v1.ApprovalEvent) error) error {
	w := &approvalWatch{client: c, event: event, pending: map[string]bool{}}
	return relisten(ctx, &w.progress, w.listen)
}

// approvalWatch is what a listener knows over several connections.
type approvalWatch struct {
	progress
	client  *Client
	event   func(v1.ApprovalEvent) error
	pending map[string]bool
}

// listen listens over one connection.
func (w *approvalWatch) listen(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return w.client.readEvents(ctx, newCall(http.MethodGet, "approvals", "events"), func(kind string, data []byte) (bool, error) {
		w.heard++
		if kind == "listening" {
			return false, w.missed(ctx)
		}
		var e v1.ApprovalEvent
		if err := json.Unmarshal(data, &e); err != nil {
			return true, fmt.Errorf("%w: an event that is no JSON: %w", ErrLost, err)
		}
		return false, w.tell(e)
	})
}

// tell hands an event on, unless it was told before.
func (w *approvalWatch) tell(e v1.ApprovalEvent) error {
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
	w.failed = w.event(e)
	return w.failed
}

// missed tells what was decided while nobody listened.
func (w *approvalWatch) missed(ctx context.Context) error {
	if len(w.pending) == 0 {
		return nil
	}
	list, err := w.client.Approvals(ctx, "pending")
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
		a, err := w.client.Approval(ctx, id) // a list has not all
		switch {
		case errdefs.IsNotFound(err):
			delete(w.pending, id)
			continue
		case err != nil:
			return err
		case a.State == "pending":
			continue
		}
		if err := w.tell(v1.ApprovalEvent{Type: "decided", Approval: a}); err != nil {
			return err
		}
	}
	return nil
}
