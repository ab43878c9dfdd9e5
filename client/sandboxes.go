package client

import (
	"context"
	"net/http"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CreateSandbox leases a sandbox.
func (c *Client) CreateSandbox(ctx context.Context, r v1.SandboxRequest, opts ...Option) (v1.Sandbox, error) {
	return post[v1.Sandbox](ctx, c, newCall(http.MethodPost, "sandboxes"), r, opts)
}

// Sandboxes lists the caller's leases, newest first; with ended, those that
// are over too.
func (c *Client) Sandboxes(ctx context.Context, ended bool) ([]v1.Sandbox, error) {
	l, err := ask[v1.List[v1.Sandbox]](ctx, c, newCall(http.MethodGet, "sandboxes").flag("ended", ended))
	return l.Items, err
}

// AllSandboxes lists everything that lives: leases of all callers, what is warm
// and what is being made. It is for operators.
func (c *Client) AllSandboxes(ctx context.Context) ([]v1.Sandbox, error) {
	l, err := ask[v1.List[v1.Sandbox]](ctx, c, newCall(http.MethodGet, "sandboxes").flag("all", true))
	return l.Items, err
}

// Sandbox describes one lease, also one that is over.
func (c *Client) Sandbox(ctx context.Context, id string) (v1.Sandbox, error) {
	return ask[v1.Sandbox](ctx, c, newCall(http.MethodGet, "sandboxes", id))
}

// RemoveSandbox destroys a sandbox at once. It returns when nothing is left of
// it; one that is gone already is success.
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	return c.answer(ctx, newCall(http.MethodDelete, "sandboxes", id), nil)
}

// StopSandbox asks what runs in a sandbox to end (TERM), waits for at most
// grace and then destroys it. It returns when nothing is left of it.
func (c *Client) StopSandbox(ctx context.Context, id string, grace time.Duration) (v1.Sandbox, error) {
	return ask[v1.Sandbox](ctx, c, newCall(http.MethodPost, "sandboxes", id, "stop").duration("grace_ms", grace))
}

// SyncSandbox brings the workspace up to what the sandbox has, where it is
// carried and not mounted; elsewhere there is nothing to do.
func (c *Client) SyncSandbox(ctx context.Context, id string) (v1.Sync, error) {
	return ask[v1.Sync](ctx, c, newCall(http.MethodPost, "sandboxes", id, "sync"))
}
