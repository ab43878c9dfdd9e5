package engine

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/pull"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Images lists the images. Only operators see what uses an image.
func (e *Engine) Images(ctx context.Context, p caller.Principal) ([]v1.Image, error) {
	var needed map[string][]string
	if p.Operator {
		var err error
		if needed, err = e.imagesNeeded(ctx); err != nil {
			return nil, err
		}
	}
	out := []v1.Image{}
	for _, i := range e.opts.Images.List() {
		for _, shown := range PresentImage(i) {
			if shown.UsedBy = needed[i.ID]; !p.Operator {
				shown.UsedAt = time.Time{}
			}
			out = append(out, shown)
		}
	}
	return out, nil
}

// PinImage pins an image, which protects it from collection, or unpins it. Only operators may call
// it.
func (e *Engine) PinImage(_ context.Context, p caller.Principal, ref string, pinned bool) ([]v1.Image, error) {
	if err := p.Operate("pin images"); err != nil {
		return nil, err
	}
	img, err := e.opts.Images.Pin(ref, pinned)
	if err != nil {
		return nil, err
	}
	return PresentImage(img), nil
}

// ImportImage imports an image; see images.Store.Import. Pools keep their image until templates are
// reloaded. Only operators may call it.
func (e *Engine) ImportImage(ctx context.Context, p caller.Principal, r io.Reader, ref string) ([]v1.Image, error) {
	if err := p.Operate("import images"); err != nil {
		return nil, err
	}
	img, err := e.opts.Images.Import(ctx, r, ref)
	if err != nil {
		return nil, err
	}
	e.Events.Publish(v1.ServiceEvent{Type: "image.imported", Image: ref})
	e.Templates.RetryNow()
	e.requestCollection()
	return PresentImage(img), nil
}

// RemoveImage removes an image name, and the image with its last name. It fails if a template uses
// the image or a sandbox runs from it. Only operators may call it.
func (e *Engine) RemoveImage(ctx context.Context, p caller.Principal, ref string) error {
	if err := p.Operate("remove images"); err != nil {
		return err
	}
	img, err := e.opts.Images.Get(ref)
	if err != nil {
		return err
	}
	// Lock, so that no template begins to use the image.
	if err := e.Templates.Lock(ctx); err != nil {
		return err
	}
	defer e.Templates.Unlock()
	if user := e.Templates.Using(img.ID); user != "" {
		return fmt.Errorf("image %s is used by template %s: %w", ref, user, errdefs.ErrFailedPrecondition)
	}
	name, err := images.ParseName(ref)
	stays := err == nil && len(img.Refs) > 1 && slices.Contains(img.Refs, name)
	if !stays {
		if err := e.checkUnused(ctx, ref, img.ID); err != nil {
			return err
		}
	}
	if err := e.opts.Images.Remove(ctx, ref); err != nil {
		return err
	}
	e.Events.Publish(v1.ServiceEvent{Type: "image.removed", Image: ref})
	if stays {
		return nil
	}
	return e.forgetImage(ctx, img.ID)
}

// checkUnused returns an error if a sandbox runs from the image. A lease can outlive its template
// and still use the image's root.
func (e *Engine) checkUnused(ctx context.Context, ref, id string) error {
	rows, err := e.opts.Store.Live(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Image == id {
			return fmt.Errorf("image %s: sandbox %s runs from it: remove that first: %w", ref, r.ID, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// PresentImage converts an image to its API form, once for each of its names.
func PresentImage(i images.Image) []v1.Image {
	refs := i.Refs
	if len(refs) == 0 {
		refs = []string{""}
	}
	out := make([]v1.Image, 0, len(refs))
	for _, ref := range refs {
		out = append(out, v1.Image{Ref: ref, ID: i.ID, SizeBytes: i.SizeBytes, CreatedAt: i.Imported, UsedAt: i.Used, Pinned: i.Pinned, Digests: i.Digests})
	}
	return out
}

// PullImage pulls an image from its registry. tell, if set, receives the progress on the goroutine
// of PullImage. Concurrent pulls of the same image share one download. Templates that wait for an
// image are retried. Only operators may call it.
func (e *Engine) PullImage(ctx context.Context, p caller.Principal, r v1.PullRequest, tell func(v1.PullEvent)) ([]v1.Image, error) {
	if err := p.Operate("pull images"); err != nil {
		return nil, err
	}
	if e.opts.Puller == nil {
		return nil, fmt.Errorf("image pulls are not configured on this service: %w", errdefs.ErrNotImplemented)
	}
	if r.Ref == "" {
		return nil, &usererror.InvalidError{Field: "ref", Message: "is missing: it names the image to pull", Class: errdefs.ErrInvalidArgument}
	}
	var watch func(pull.Progress)
	if tell != nil {
		watch = PullEvents("", tell)
	}
	img, err := e.opts.Puller.Pull(ctx, r.Ref, watch)
	if err != nil {
		return nil, err
	}
	if r.Keep {
		if img, err = e.opts.Images.Pin(img.ID, true); err != nil {
			return nil, err
		}
	}
	e.Templates.RetryNow()
	e.requestCollection()
	e.Events.Publish(v1.ServiceEvent{Type: "image.pulled", Image: r.Ref})
	return PresentImage(img), nil
}

// PullEvents returns a function that converts pull progress to events with the layers that changed.
// ref names the image in events of a build.
func PullEvents(ref string, tell func(v1.PullEvent)) func(pull.Progress) {
	var last pull.Progress
	return func(p pull.Progress) {
		e := v1.PullEvent{Type: "progress", Ref: ref, Phase: p.Phase, Digest: p.Digest}
		for i, l := range p.Layers {
			if i >= len(last.Layers) || last.Layers[i] != l {
				e.Layers = append(e.Layers, v1.PullLayer{Digest: l.Digest, SizeBytes: l.Size, HaveBytes: l.Have, Here: l.Here})
			}
		}
		if last.Phase == p.Phase && last.Digest == p.Digest && slices.Equal(last.Layers, p.Layers) {
			return
		}
		last = p
		tell(e)
	}
}
