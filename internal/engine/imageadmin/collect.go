package imageadmin

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// collectEvery is the interval of image collection. Each new image also triggers one.
const collectEvery = time.Hour

// Bounds limits the disk usage of images and the time that one may be unused. Zero means no
// limit.
type Bounds struct {
	Budget int64
	MaxAge time.Duration
}

// Collect removes unused images until the configured limits are met. If dry is set, it only
// reports them. Only operators may call it.
func (s *Service) Collect(ctx context.Context, p caller.Principal, dry bool) (v1.ImageCollection, error) {
	if err := p.Operate("collect images"); err != nil {
		return v1.ImageCollection{}, err
	}
	got, err := s.collect(ctx, dry)
	return PresentCollection(got, s.opts.Bounds, dry), err
}

// collect holds the templates' lock, so that no template begins to use an image.
func (s *Service) collect(ctx context.Context, dry bool) (images.Collected, error) {
	if err := s.opts.Templates.Lock(ctx); err != nil {
		return images.Collected{}, err
	}
	defer s.opts.Templates.Unlock()
	needed, err := s.needed(ctx)
	if err != nil {
		return images.Collected{}, err
	}
	for id := range needed {
		s.opts.Images.Touch(id)
	}
	got, err := s.opts.Images.Collect(
		ctx,
		images.Collection{Budget: s.opts.Bounds.Budget, MaxAge: s.opts.Bounds.MaxAge, Needed: needed, Dry: dry},
	)
	if dry {
		return got, err
	}
	for _, v := range got.Verdicts {
		if v.Removed {
			err = errors.Join(err, s.forgetImage(ctx, v.Image.ID))
		}
	}
	return got, err
}

// forgetImage removes the driver's copy of an image that is no longer stored.
func (s *Service) forgetImage(ctx context.Context, id string) error {
	f, ok := s.opts.Driver.(runtime.ImageForgetter)
	if !ok {
		return nil
	}
	err := f.Forget(ctx, runtime.Image{ID: id})
	if errdefs.IsFailedPrecondition(err) { // a container of another program uses it
		s.opts.Log.Info("container engine keeps its copy of an image", "image", id, "error", err)
		return nil
	}
	return err
}

// needed returns what uses each image, by image id: templates, including those that are not
// ready, and sandboxes.
func (s *Service) needed(ctx context.Context) (map[string][]string, error) {
	needed := map[string][]string{}
	for _, name := range s.opts.Scheduler.Templates() {
		if t, ok := s.opts.Scheduler.Template(name); ok {
			needed[t.Spec.Image.ID] = append(needed[t.Spec.Image.ID], "template:"+name)
		}
	}
	for name, want := range s.opts.Templates.WantedImages() {
		if img, err := s.opts.Images.Resolve(want); err == nil {
			if by := "template:" + name; !slices.Contains(needed[img.ID], by) {
				needed[img.ID] = append(needed[img.ID], by)
			}
		}
	}
	rows, err := s.opts.Store.Live(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range rows {
		needed[r.Image] = append(needed[r.Image], "sandbox:"+r.ID)
	}
	return needed, nil
}

// Run collects images until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	t := time.NewTicker(collectEvery)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		case <-s.newImage:
		}
		if _, err := s.collect(ctx, false); err != nil && ctx.Err() == nil {
			s.opts.Log.Warn("failed to collect images", "error", err)
		}
	}
}

// requestCollection triggers a collection soon.
func (s *Service) requestCollection() {
	select {
	case s.newImage <- struct{}{}:
	default: // already requested
	}
}

// PresentCollection converts the outcome of a collection to its API form.
func PresentCollection(c images.Collected, b Bounds, dry bool) v1.ImageCollection {
	out := v1.ImageCollection{
		Items: []v1.CollectedImage{}, FreedBytes: c.Freed, BlobBytes: c.BlobBytes, UsedBytes: c.Used,
		BudgetBytes: b.Budget, MaxAgeMS: b.MaxAge.Milliseconds(), DryRun: dry,
	}
	for _, v := range c.Verdicts {
		out.Items = append(
			out.Items,
			v1.CollectedImage{
				ID:        v.Image.ID,
				Refs:      v.Image.Refs,
				DiskBytes: v.Bytes,
				UsedAt:    v.Image.Used,
				Removed:   v.Removed,
				Why:       v.Why,
			},
		)
	}
	return out
}
