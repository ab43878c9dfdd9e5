package docker

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

var _ runtime.ImageForgetter = (*Driver)(nil)

// Forget removes the image under the name that it was loaded by. Images that people named stay. See
// runtime.ImageForgetter.
func (d *Driver) Forget(ctx context.Context, img runtime.Image) error {
	d.forget(img)
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	_, err := d.api.ImageRemove(ctx, images.EngineTag(img.ID), client.ImageRemoveOptions{PruneChildren: true})
	switch {
	case err == nil, errdefs.IsNotFound(err):
		return nil
	case errdefs.IsConflict(err):
		return refused("image %s is used by a container of the engine", img.ID)
	}
	return d.failed(ctx, "remove image "+img.ID, err)
}
