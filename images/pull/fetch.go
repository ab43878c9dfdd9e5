package pull

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	units "github.com/docker/go-units"
	"golang.org/x/sync/errgroup"

	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/registry"
)

// fetch downloads the layers that the store lacks and adds the image. Downloaded blobs stay until
// the image is added.
func (p *Puller) fetch(ctx context.Context, plan plan, f *sharedPull) (image images.Image, err error) {
	diffs := make([]string, 0, len(plan.layers))
	for _, l := range plan.layers {
		diffs = append(diffs, l.Diff)
	}
	shared, err := p.o.Store.FindLayers(ctx, diffs)
	if err != nil {
		return images.Image{}, err
	}
	defer func() { err = errors.Join(err, shared.Close()) }()
	at, missing, need := plan.startFetch(f, shared)
	if err := p.checkRoom(need); err != nil {
		return images.Image{}, err
	}
	// Hold the blobs so that they are not collected.
	blobs := make([]*images.Blob, len(missing))
	defer func() {
		for _, b := range blobs {
			if b != nil {
				// Do not keep invalid content for the next pull.
				err = errors.Join(err, b.Release(err == nil || errdefs.IsInvalidArgument(err)))
			}
		}
	}()
	for i, digest := range missing {
		if blobs[i], err = p.o.Store.HoldBlob(digest); err != nil {
			return images.Image{}, err
		}
	}
	if err := p.download(ctx, plan, f, missing, blobs, at); err != nil {
		return images.Image{}, err
	}
	f.change(func(progress *Progress) { progress.Phase = Importing })
	return p.o.Store.AddPulled(ctx, images.Pulled{Config: plan.config, Layers: plan.layers, Name: plan.name,
		Digests: plan.digests}, shared)
}

// startFetch fills in the layers of the progress. It returns the index of each blob there, and the
// blobs to download with their total size in bytes.
func (p plan) startFetch(f *sharedPull, shared *images.SharedLayers) (at map[string]int, missing []string, need int64) {
	at = map[string]int{}
	f.change(func(progress *Progress) {
		progress.Phase = Fetching
		for _, l := range p.layers {
			if _, twice := at[l.Blob]; twice {
				continue
			}
			at[l.Blob] = len(progress.Layers)
			layer := Layer{Digest: l.Blob, Size: p.sizes[l.Blob], Here: shared.Has(l.Diff)}
			if layer.Here {
				layer.Have = layer.Size
			} else {
				missing = append(missing, l.Blob)
				need += layer.Size
			}
			progress.Layers = append(progress.Layers, layer)
		}
	})
	return at, missing, need
}

// download fetches the missing blobs, up to Parallel at a time.
func (p *Puller) download(ctx context.Context, plan plan, f *sharedPull, missing []string, blobs []*images.Blob,
	at map[string]int) error {
	g, fetching := errgroup.WithContext(ctx)
	g.SetLimit(Parallel)
	for i, digest := range missing {
		g.Go(func() error {
			unlock, err := blobs[i].Lock(fetching)
			if err != nil {
				return err
			}
			defer unlock()
			return p.o.Registry.Fetch(fetching, plan.from, registry.Blob{Digest: digest, Size: plan.sizes[digest]},
				blobs[i].Path, func(have int64) {
					f.change(func(progress *Progress) { progress.Layers[at[digest]].Have = have })
				})
		})
	}
	return g.Wait()
}

// checkRoom fails early if the missing bytes do not fit on the disk.
func (p *Puller) checkRoom(need int64) error {
	free, err := p.o.Store.Free()
	if err != nil {
		return err
	}
	if need > free {
		return fmt.Errorf("missing layers need %s, but the disk has %s left: free space with orchestrator image gc: %w",
			units.BytesSize(float64(need)), units.BytesSize(float64(free)), errdefs.ErrResourceExhausted)
	}
	return nil
}
