package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Figures returns the current resource usage of sandboxes, newest sandbox first. Operators see the
// sandboxes of all callers, other callers only their own.
func (c *Client) Figures(ctx context.Context) ([]v1.Figures, error) {
	l, err := callJSON[v1.List[v1.Figures]](ctx, c, newCall(http.MethodGet, "figures"))
	return l.Items, err
}
