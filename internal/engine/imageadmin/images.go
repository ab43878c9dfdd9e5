// Package imageadmin serves requests about images and removes images that nothing uses.
package imageadmin

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/pull"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/templates"
	"github.com/sandbox-orchestrator/orchestrator/internal/eventhub"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Options configures a Service.
type Options struct {
	Driver runtime.Driver
	Store  *store.Store
	Images *images.Store
	// Puller and Builder may be nil.
	Puller  *pull.Puller
	Builder runtime.ImageBuilder
	// Bounds limits the disk usage and age of images.
	Bounds    Bounds
	Scheduler *scheduler.Scheduler
	Templates *templates.Service
	Events    *eventhub.Hub
	Log       *slog.Logger
}

// Service lists, imports, pulls, builds and removes images. Its methods may be called concurrently.
type Service struct {
	opts     Options
	newImage chan struct{} // requests a collection; capacity 1
}

// New returns a Service. Run collects images.
func New(opts Options) *Service { return &Service{opts: opts, newImage: make(chan struct{}, 1)} }

// List lists the images. Only operators see what uses an image.
func (s *Service) List(ctx context.Context, p caller.Principal) ([]v1.Image, error) {
	var needed map[string][]string
	if p.Operator {
		var err error
		if needed, err = s.needed(ctx); err != nil {
			return nil, err
		}
	}
	out := []v1.Image{}
	for _, i := range s.opts.Images.List() {
		for _, shown := range Present(i) {
			if shown.UsedBy = needed[i.ID]; !p.Operator {
				shown.UsedAt = time.Time{}
			}
			out = append(out, shown)
		}
	}
	return out, nil
}

// Pin pins an image, which protects it from collection, or unpins it. Only operators may call
// it.
func (s *Service) Pin(_ context.Context, p caller.Principal, ref string, pinned bool) ([]v1.Image, error) {
	if err := p.Operate("pin images"); err != nil {
		return nil, err
	}
	img, err := s.opts.Images.Pin(ref, pinned)
	if err != nil {
		return nil, err
	}
	return Present(img), nil
}

// Import imports an image; see images.Store.Import. It returns when the templates that waited for
// the image can be leased. Pools keep their image until templates are reloaded. Only operators may
// call it.
func (s *Service) Import(ctx context.Context, p caller.Principal, r io.Reader, ref string) ([]v1.Image, error) {
	if err := p.Operate("import images"); err != nil {
		return nil, err
	}
	img, err := s.opts.Images.Import(ctx, r, ref)
	if err != nil {
		return nil, err
	}
	s.opts.Events.Publish(v1.ServiceEvent{Type: "image.imported", Image: ref})
	s.opts.Templates.RetryNow(ctx)
	s.requestCollection()
	return Present(img), nil
}

// Remove removes an image name, and the image with its last name. It fails if a template uses
// the image or a sandbox runs from it. Only operators may call it.
func (s *Service) Remove(ctx context.Context, p caller.Principal, ref string) error {
	if err := p.Operate("remove images"); err != nil {
		return err
	}
	img, err := s.opts.Images.Get(ref)
	if err != nil {
		return err
	}
	// Lock, so that no template begins to use the image.
	if err := s.opts.Templates.Lock(ctx); err != nil {
		return err
	}
	defer s.opts.Templates.Unlock()
	if user := s.opts.Templates.Using(img.ID); user != "" {
		return fmt.Errorf("image %s is used by template %s: %w", ref, user, errdefs.ErrFailedPrecondition)
	}
	name, err := images.ParseName(ref)
	stays := err == nil && len(img.Refs) > 1 && slices.Contains(img.Refs, name)
	if !stays {
		if err := s.checkUnused(ctx, ref, img.ID); err != nil {
			return err
		}
	}
	if err := s.opts.Images.Remove(ctx, ref); err != nil {
		return err
	}
	s.opts.Events.Publish(v1.ServiceEvent{Type: "image.removed", Image: ref})
	if stays {
		return nil
	}
	return s.forgetImage(ctx, img.ID)
}

// checkUnused returns an error if a sandbox runs from the image. A lease can outlive its template
// and still use the image's root.
func (s *Service) checkUnused(ctx context.Context, ref, id string) error {
	rows, err := s.opts.Store.Live(ctx)
	if err != nil {
		return err
	}
	for _, r := range rows {
		if r.Image == id {
			return fmt.Errorf(
				"image %s: sandbox %s runs from it: remove that first: %w",
				ref,
				r.ID,
				errdefs.ErrFailedPrecondition,
			)
		}
	}
	return nil
}

// Present converts an image to its API form, once for each of its names.
func Present(i images.Image) []v1.Image {
	refs := i.Refs
	if len(refs) == 0 {
		refs = []string{""}
	}
	out := make([]v1.Image, 0, len(refs))
	for _, ref := range refs {
		out = append(
			out,
			v1.Image{
				Ref:       ref,
				ID:        i.ID,
				SizeBytes: i.SizeBytes,
				CreatedAt: i.Imported,
				UsedAt:    i.Used,
				Pinned:    i.Pinned,
				Digests:   i.Digests,
			},
		)
	}
	return out
}

// Pull pulls an image from its registry. tell, if set, receives the progress on the goroutine
// of PullImage. Concurrent pulls of the same image share one download. Templates that wait for an
// image are retried. Only operators may call it.
func (s *Service) Pull(
	ctx context.Context,
	p caller.Principal,
	r v1.PullRequest,
	tell func(v1.PullEvent),
) ([]v1.Image, error) {
	if err := p.Operate("pull images"); err != nil {
		return nil, err
	}
	if s.opts.Puller == nil {
		return nil, fmt.Errorf("image pulls are not configured on this service: %w", errdefs.ErrNotImplemented)
	}
	if r.Ref == "" {
		return nil, &usererror.InvalidError{
			Field:   "ref",
			Message: "is missing: it names the image to pull",
			Class:   errdefs.ErrInvalidArgument,
		}
	}
	var watch func(pull.Progress)
	if tell != nil {
		watch = PullEvents("", tell)
	}
	img, err := s.opts.Puller.Pull(ctx, r.Ref, watch)
	if err != nil {
		return nil, err
	}
	if r.Keep {
		if img, err = s.opts.Images.Pin(img.ID, true); err != nil {
			return nil, err
		}
	}
	s.opts.Templates.RetryNow(ctx)
	s.requestCollection()
	s.opts.Events.Publish(v1.ServiceEvent{Type: "image.pulled", Image: r.Ref})
	return Present(img), nil
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
