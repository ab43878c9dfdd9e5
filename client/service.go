package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Version returns the server's version and the runtime that it uses.
func (c *Client) Version(ctx context.Context) (v1.Version, error) {
	return callJSON[v1.Version](ctx, c, newCall(http.MethodGet, "version"))
}

// Pools returns the state of the warm pools.
func (c *Client) Pools(ctx context.Context) ([]v1.Pool, error) {
	l, err := callJSON[v1.List[v1.Pool]](ctx, c, newCall(http.MethodGet, "pools"))
	return l.Items, err
}

// Down destroys every sandbox and stops the server. It returns when the shutdown has begun. The
// server has exited when Version returns ErrNoServer.
func (c *Client) Down(ctx context.Context) error {
	return c.doJSON(ctx, newCall(http.MethodPost, "down"), nil)
}
