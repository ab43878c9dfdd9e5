//go:build linux

package standalone

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/pull"
	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/images/registry"
	"github.com/sandbox-orchestrator/orchestrator/images/signature"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/imageadmin"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
)

// ImageBounds returns the configured limits of images.
func ImageBounds(c config.Images) imageadmin.Bounds {
	return imageadmin.Bounds{Budget: int64(c.Budget), MaxAge: c.MaxAge.Std()}
}

// BuildPrefix is the prefix of directories in which root filesystems are built.
const BuildPrefix = ".build-"

// SweepBuilds removes the directories of builds that were killed. Each holds a whole root
// filesystem.
func SweepBuilds(stateDir string) error { return scratch.Sweep(stateDir, BuildPrefix, nil) }

// NewPuller returns a puller with the configured rules, credentials and signatures.
func NewPuller(c config.Images, store *images.Store, log *slog.Logger) (*pull.Puller, error) {
	o := pull.Options{Store: store, RequireDigest: c.RequireDigest, Log: log}
	var err error
	if o.Allow, err = ref.ParseList(c.Allow); err != nil {
		return nil, fmt.Errorf("configuration: images.allow: %w", err)
	}
	if o.Signed, err = ref.ParseList(c.Signatures.For); err != nil {
		return nil, fmt.Errorf("configuration: images.signatures.for: %w", err)
	}
	for _, path := range c.Signatures.Keys {
		key, err := readKey(path)
		if err != nil {
			return nil, fmt.Errorf("configuration: images.signatures.keys: %w", err)
		}
		o.Keys = append(o.Keys, key)
	}
	o.Registry = registry.New(registry.Options{Insecure: c.Insecure, Log: log})
	return pull.New(o), nil
}

func readKey(path string) (signature.Key, error) {
	const most = 64 << 10
	f, err := os.Open(path)
	if err != nil {
		return signature.Key{}, cli.Refuse(errdefs.ErrInvalidArgument, "%w", err)
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, most))
	if err != nil {
		return signature.Key{}, err
	}
	return signature.ParseKey(path, raw)
}

// ImageFetcher returns a function that pulls the images that templates lack, or nil if that is
// disabled.
func ImageFetcher(c config.Images, p *pull.Puller, log *slog.Logger) func(context.Context, string) error {
	if !c.Prepull {
		return nil
	}
	return func(ctx context.Context, name string) error {
		// A name without a registry is local: an image of that name at a public registry is another
		// one.
		if !ref.HasRegistry(name) {
			return explainMissingImage(
				cli.Refuse(errdefs.ErrNotFound, "image %q not found, and its name has no registry to pull it from", name),
			)
		}
		log.Info("pulling a template's image", "ref", name)
		told, phase := time.Now(), ""
		_, err := p.Pull(ctx, name, func(now pull.Progress) {
			const often = 10 * time.Second
			if now.Phase == phase && time.Since(told) < often {
				return
			}
			told, phase = time.Now(), now.Phase
			have, size := int64(0), int64(0)
			for _, l := range now.Layers {
				have, size = have+l.Have, size+l.Size
			}
			log.Info("a template's image is on its way", "ref", name, "phase", phase, "bytes", have, "of", size)
		})
		return err
	}
}

// explainMissingImage adds how to get an image that is not found.
func explainMissingImage(err error) error {
	if errdefs.IsNotFound(err) {
		return cli.Refuse(
			errdefs.ErrNotFound,
			"%s: make it with `make image` and give its path to `orchestrator image import`",
			cli.WithoutClass(err.Error()),
		)
	}
	return err
}
