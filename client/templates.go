package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// List lists all templates, including those that are not ready.
func (s Templates) List(ctx context.Context) ([]v1.Template, error) {
	l, err := callJSON[v1.List[v1.Template]](ctx, s.c, newCall(http.MethodGet, "templates"))
	return l.Items, err
}

// Get returns one template.
func (s Templates) Get(ctx context.Context, name string) (v1.Template, error) {
	return callJSON[v1.Template](ctx, s.c, newCall(http.MethodGet, "templates", name))
}

// Reload makes the server read its template files again. It returns when the new versions
// are in use. Warm sandboxes of old versions are destroyed in the background.
func (s Templates) Reload(ctx context.Context) (v1.TemplateReload, error) {
	return callJSON[v1.TemplateReload](ctx, s.c, newCall(http.MethodPost, "templates", "reload"))
}
