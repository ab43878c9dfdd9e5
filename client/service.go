package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Version says what the server is and what it runs on.
func (c *Client) Version(ctx context.Context) (v1.Version, error) {
	return ask[v1.Version](ctx, c, newCall(http.MethodGet, "version"))
}

// Pools tells the state of the warm pools.
func (c *Client) Pools(ctx context.Context) ([]v1.Pool, error) {
	l, err := ask[v1.List[v1.Pool]](ctx, c, newCall(http.MethodGet, "pools"))
	return l.Items, err
}

// Down destroys every sandbox and stops the server. It returns when the server
// has begun; the server is gone when Version gives ErrNoServer.
func (c *Client) Down(ctx context.Context) error {
	return c.answer(ctx, newCall(http.MethodPost, "down"), nil)
}
