package runtime

import "context"

// TemplateKeeper is implemented by drivers that keep objects for templates in a cluster, besides
// those of sandboxes.
type TemplateKeeper interface {
	// RemoveTemplates removes the objects of an owner. It succeeds if there are none.
	RemoveTemplates(ctx context.Context, owner string) error
}
