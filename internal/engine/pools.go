package engine

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	v1 "orchestrator/client/v1"
	"orchestrator/images"
)

// Pools tells the state of the warm pools. What went wrong in them is for
// operators: it may say a lot of the host.
func (e *Engine) Pools(_ context.Context, call Call) []v1.Pool {
	stats := e.sched.Pools()
	out := make([]v1.Pool, 0, len(stats))
	for _, p := range stats {
		if !call.Operator {
			p.LastError = ""
		}
		out = append(out, v1.Pool{
			Template: p.Template, Image: p.Image, Min: p.Settings.Min, Max: p.Settings.Max, Creating: p.Creating, Warm: p.Warm,
			Leased: p.Leased, Waiting: p.Waiting, Created: p.Created, Failed: p.Failed, LastError: p.LastError,
		})
	}
	return out
}

// Images lists the imported images.
func (e *Engine) Images(context.Context) []v1.Image {
	out := []v1.Image{}
	for _, i := range e.opts.Images.List() {
		out = append(out, PresentImage(i)...)
	}
	return out
}

// ImportImage takes in an image; see images.Store.Import. A template's pool
// goes on with what it has until the service is started again. Only operators may.
func (e *Engine) ImportImage(ctx context.Context, call Call, r io.Reader, ref string) ([]v1.Image, error) {
	if err := call.operate("import images"); err != nil {
		return nil, err
	}
	img, err := e.opts.Images.Import(ctx, r, ref)
	if err != nil {
		return nil, err
	}
	return PresentImage(img), nil
}

// RemoveImage removes a name, and the image with its last one, unless a
// template uses it. Only operators may.
func (e *Engine) RemoveImage(ctx context.Context, call Call, ref string) error {
	if err := call.operate("remove images"); err != nil {
		return err
	}
	img, err := e.opts.Images.Get(ref)
	if err != nil {
		return err
	}
	for _, t := range e.opts.Templates {
		if t.Spec.Image.ID == img.ID {
			return fmt.Errorf("image %s is used by template %s: %w", ref, t.Name, errdefs.ErrFailedPrecondition)
		}
	}
	return e.opts.Images.Remove(ctx, ref)
}

// PresentImage shows an image once for each of its names.
func PresentImage(i images.Image) []v1.Image {
	refs := i.Refs
	if len(refs) == 0 {
		refs = []string{""}
	}
	out := make([]v1.Image, 0, len(refs))
	for _, ref := range refs {
		out = append(out, v1.Image{Ref: ref, ID: i.ID, SizeBytes: i.SizeBytes, CreatedAt: i.Imported})
	}
	return out
}
