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

// fetch brings the layers that no image here has, and takes the image in. What
// came stays until it was taken in.
func (p *Puller) fetch(ctx context.Context, plan plan, f *flight) (image images.Image, err error) {
	var diffs []string
	for _, l := range plan.layers {
		diffs = append(diffs, l.Diff)
	}
	lent, err := p.o.Store.Lend(ctx, diffs)
	if err != nil {
		return images.Image{}, err
	}
	defer func() { err = errors.Join(err, lent.Close()) }()
	at := map[string]int{} // blobs' places in the progress
	var missing []string
	var need int64
	f.change(func(progress *Progress) {
		progress.Phase = Fetching
		for _, l := range plan.layers {
			if _, twice := at[l.Blob]; twice {
				continue
			}
			at[l.Blob] = len(progress.Layers)
			layer := Layer{Digest: l.Blob, Size: plan.sizes[l.Blob], Here: lent.Has(l.Diff)}
			if layer.Here {
				layer.Have = layer.Size
			} else {
				missing = append(missing, l.Blob)
				need += layer.Size
			}
			progress.Layers = append(progress.Layers, layer)
		}
	})
	if err := p.room(need); err != nil {
		return images.Image{}, err
	}
	// Nothing of it is collected meanwhile.
	blobs := make([]*images.Blob, len(missing))
	defer func() {
		for _, b := range blobs {
			if b != nil {
				// What proves wrong is not taken up again.
				err = errors.Join(err, b.Release(err == nil || errdefs.IsInvalidArgument(err)))
			}
		}
	}()
	for i, digest := range missing {
		if blobs[i], err = p.o.Store.HoldBlob(digest); err != nil {
			return images.Image{}, err
		}
	}
	g, fetching := errgroup.WithContext(ctx)
	g.SetLimit(Parallel)
	for i, digest := range missing {
		g.Go(func() error {
			unlock, err := blobs[i].Lock(fetching)
			if err != nil {
				return err
			}
			defer unlock()
			return p.o.Registry.Fetch(fetching, plan.from, registry.Blob{Digest: digest, Size: plan.sizes[digest]}, blobs[i].Path, func(have int64) {
				f.change(func(progress *Progress) { progress.Layers[at[digest]].Have = have })
			})
		})
	}
	if err := g.Wait(); err != nil {
		return images.Image{}, err
	}
	f.change(func(progress *Progress) { progress.Phase = Importing })
	return p.o.Store.Adopt(ctx, images.Pulled{Config: plan.config, Layers: plan.layers, Name: plan.name, Digests: plan.digests}, lent)
}

// room refuses what cannot fit before anything is fetched.
func (p *Puller) room(need int64) error {
	free, err := p.o.Store.Free()
	if err != nil {
		return err
	}
	if need > free {
		return fmt.Errorf("the layers to fetch have %s and the disk has %s left: make room (orchestrator image gc): %w",
			units.BytesSize(float64(need)), units.BytesSize(float64(free)), errdefs.ErrResourceExhausted)
	}
	return nil
}
