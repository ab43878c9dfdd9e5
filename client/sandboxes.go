package client

import (
	"context"
	"net/http"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// CreateSandbox leases a sandbox. If no warm sandbox is free, r.WhenEmpty decides whether it waits,
// creates one, or fails.
func (c *Client) CreateSandbox(ctx context.Context, r v1.SandboxRequest, opts ...Option) (v1.Sandbox, error) {
	return callJSONWithBody[v1.Sandbox](ctx, c, newCall(http.MethodPost, "sandboxes"), r, opts)
}

// Sandboxes lists the caller's leases, newest first. If ended is set, the list includes leases that
// have ended.
func (c *Client) Sandboxes(ctx context.Context, ended bool) ([]v1.Sandbox, error) {
	l, err := callJSON[v1.List[v1.Sandbox]](ctx, c, newCall(http.MethodGet, "sandboxes").flag("ended", ended))
	return l.Items, err
}

// AllSandboxes lists every sandbox that exists: leases of all callers, warm sandboxes and those
// under creation. Only operators may.
func (c *Client) AllSandboxes(ctx context.Context) ([]v1.Sandbox, error) {
	l, err := callJSON[v1.List[v1.Sandbox]](ctx, c, newCall(http.MethodGet, "sandboxes").flag("all", true))
	return l.Items, err
}

// Sandbox returns one lease. It also finds leases that have ended.
func (c *Client) Sandbox(ctx context.Context, id string) (v1.Sandbox, error) {
	return callJSON[v1.Sandbox](ctx, c, newCall(http.MethodGet, "sandboxes", id))
}

// RemoveSandbox destroys a sandbox and returns when the removal is complete. Removing a sandbox
// that has already ended succeeds.
func (c *Client) RemoveSandbox(ctx context.Context, id string) error {
	return c.doJSON(ctx, newCall(http.MethodDelete, "sandboxes", id), nil)
}

// StopSandbox sends TERM to the processes of a sandbox, waits up to grace for them to exit, and
// then destroys the sandbox. It returns when the removal is complete.
func (c *Client) StopSandbox(ctx context.Context, id string, grace time.Duration) (v1.Sandbox, error) {
	return callJSON[v1.Sandbox](ctx, c, newCall(http.MethodPost, "sandboxes", id, "stop").duration("grace_ms", grace))
}

// SyncSandbox copies a sandbox's files back to its workspace. It does nothing if the workspace is
// mounted, because then it is always up to date.
func (c *Client) SyncSandbox(ctx context.Context, id string) (v1.Sync, error) {
	return callJSON[v1.Sync](ctx, c, newCall(http.MethodPost, "sandboxes", id, "sync"))
}
