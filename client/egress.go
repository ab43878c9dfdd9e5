package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Egress tells what a sandbox may reach, and its last connections.
func (c *Client) Egress(ctx context.Context, sandbox string) (v1.EgressState, error) {
	return ask[v1.EgressState](ctx, c, newCall(http.MethodGet, "sandboxes", sandbox, "egress"))
}

// SetEgress changes what a sandbox may reach, at once: what is open and no
// longer allowed ends. No rules: nothing.
func (c *Client) SetEgress(ctx context.Context, sandbox string, r v1.Egress) (v1.EgressState, error) {
	if r.Rules == nil {
		r.Rules = []v1.EgressRule{}
	}
	return post[v1.EgressState](ctx, c, newCall(http.MethodPut, "sandboxes", sandbox, "egress"), r, nil)
}

// ClearEgress lets a sandbox reach nothing.
func (c *Client) ClearEgress(ctx context.Context, sandbox string) error {
	return c.answer(ctx, newCall(http.MethodDelete, "sandboxes", sandbox, "egress"), nil)
}
