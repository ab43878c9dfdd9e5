package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Figures tells what sandboxes use now, newest first: the caller's own, and for
// operators those of all callers.
func (c *Client) Figures(ctx context.Context) ([]v1.Figures, error) {
	l, err := ask[v1.List[v1.Figures]](ctx, c, newCall(http.MethodGet, "figures"))
	return l.Items, err
}
