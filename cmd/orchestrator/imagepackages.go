package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"sigs.k8s.io/yaml"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/debian"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// newBuild begins the names of folders that roots are made in.
const newBuild = ".build-"

// sweepBuilds removes the folders of builds that were killed: each is a whole
// root filesystem.
func sweepBuilds(stateDir string) error { return scratch.Sweep(stateDir, newBuild, nil) }

// runPackages makes a root from a list of packages, on this host, and imports
// it, into the server where there is one.
func (a *app) runPackages(ctx context.Context, o buildOptions) error {
	list, base := o.list, "."
	if o.from != "" {
		raw, err := os.ReadFile(o.from)
		if err != nil {
			return refuse(errdefs.ErrNotFound, "%w", err)
		}
		var read debian.List
		if raw, err = yaml.YAMLToJSONStrict(raw); err == nil {
			err = strictjson.Decode(raw, &read)
		}
		if err != nil {
			return refuse(errdefs.ErrInvalidArgument, "%s: %w", o.from, err)
		}
		read.Packages = append(read.Packages, list.Packages...)
		list, base = read, filepath.Dir(o.from)
	}
	c, err := a.valid()
	if err != nil {
		return err
	}
	cl, err := a.server(ctx, c)
	if err != nil {
		return err
	}
	if err := makeStateDir(c.StateDir); err != nil {
		return err
	}
	if err := sweepBuilds(c.StateDir); err != nil {
		return err
	}
	dir, err := scratch.Make(c.StateDir, newBuild)
	if err != nil {
		return fmt.Errorf("build: %w", err)
	}
	defer dir.Remove() //nolint:errcheck // else the next build or server does
	log := a.stderr
	if o.quiet {
		log = io.Discard
	}
	var built []v1.Image
	err = debian.Build(ctx, list, base, dir.Path, log, func(tar io.Reader) (err error) {
		if cl != nil {
			built, err = cl.ImportImage(ctx, tar, -1, o.Ref)
			return err
		}
		built, err = withImages(ctx, a, c, func(s *images.Store) ([]v1.Image, error) {
			img, err := s.Import(ctx, tar, o.Ref)
			return present(img), err
		})
		return err
	})
	if err != nil {
		return err
	}
	if o.Keep {
		return a.runImagePin(ctx, o.Ref, true)
	}
	return a.printBuilt(built, o.quiet)
}
