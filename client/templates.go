package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Templates lists all templates, including those that are not ready.
func (c *Client) Templates(ctx context.Context) ([]v1.Template, error) {
	l, err := callJSON[v1.List[v1.Template]](ctx, c, newCall(http.MethodGet, "templates"))
	return l.Items, err
}

// Template returns one template.
func (c *Client) Template(ctx context.Context, name string) (v1.Template, error) {
	return callJSON[v1.Template](ctx, c, newCall(http.MethodGet, "templates", name))
}

// ReloadTemplates makes the server read its template files again. It returns when the new versions
// are in use. Warm sandboxes of old versions are destroyed in the background.
func (c *Client) ReloadTemplates(ctx context.Context) (v1.TemplateReload, error) {
	return callJSON[v1.TemplateReload](ctx, c, newCall(http.MethodPost, "templates", "reload"))
}
