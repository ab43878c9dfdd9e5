package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Egress returns what a sandbox may connect to, its traffic counters and its last connections.
func (c *Client) Egress(ctx context.Context, sandbox string) (v1.EgressState, error) {
	return callJSON[v1.EgressState](ctx, c, newCall(http.MethodGet, "sandboxes", sandbox, "egress"))
}

// SetEgress replaces the egress rules of a sandbox with immediate effect. Open connections that the
// new rules do not allow are closed. Without rules the sandbox can connect to nothing.
func (c *Client) SetEgress(ctx context.Context, sandbox string, r v1.Egress) (v1.EgressState, error) {
	if r.Rules == nil {
		r.Rules = []v1.EgressRule{}
	}
	return callJSONWithBody[v1.EgressState](ctx, c, newCall(http.MethodPut, "sandboxes", sandbox, "egress"), r, nil)
}

// ClearEgress removes all egress rules of a sandbox, so that it can connect to nothing.
func (c *Client) ClearEgress(ctx context.Context, sandbox string) error {
	return c.doJSON(ctx, newCall(http.MethodDelete, "sandboxes", sandbox, "egress"), nil)
}
