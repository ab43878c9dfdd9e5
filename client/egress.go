package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Get returns what a sandbox may connect to, its traffic counters and its last connections.
func (s Egress) Get(ctx context.Context, sandbox string) (v1.EgressState, error) {
	return callJSON[v1.EgressState](ctx, s.c, newCall(http.MethodGet, "sandboxes", sandbox, "egress"))
}

// Set replaces the egress rules of a sandbox with immediate effect. Open connections that the
// new rules do not allow are closed. Without rules the sandbox can connect to nothing.
func (s Egress) Set(ctx context.Context, sandbox string, r v1.Egress) (v1.EgressState, error) {
	if r.Rules == nil {
		r.Rules = []v1.EgressRule{}
	}
	return callJSONWithBody[v1.EgressState](ctx, s.c, newCall(http.MethodPut, "sandboxes", sandbox, "egress"), r, nil)
}

// Clear removes all egress rules of a sandbox, so that it can connect to nothing.
func (s Egress) Clear(ctx context.Context, sandbox string) error {
	return s.c.doJSON(ctx, newCall(http.MethodDelete, "sandboxes", sandbox, "egress"), nil)
}
