package image

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"sigs.k8s.io/yaml"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/images/debian"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
)

// runPackages builds a root filesystem from a list of packages on this host, and imports it.
func runPackages(ctx context.Context, a *cli.App, o buildOptions) error {
	list, base := debian.List{Packages: o.packages}, "."
	if o.from != "" {
		raw, err := os.ReadFile(o.from)
		if err != nil {
			return cli.Refuse(errdefs.ErrNotFound, "%w", err)
		}
		var read debian.List
		if raw, err = yaml.YAMLToJSONStrict(raw); err == nil {
			err = strictjson.Decode(raw, &read)
		}
		if err != nil {
			return cli.Refuse(errdefs.ErrInvalidArgument, "%s: %w", o.from, err)
		}
		read.Packages = append(read.Packages, list.Packages...)
		list, base = read, filepath.Dir(o.from)
	}
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	cl, err := a.FindServer(ctx, c)
	if err != nil {
		return err
	}
	if err := standalone.MakeStateDir(c.StateDir); err != nil {
		return err
	}
	if err := standalone.SweepBuilds(c.StateDir); err != nil {
		return err
	}
	dir, err := scratch.Make(c.StateDir, standalone.BuildPrefix)
	if err != nil {
		return fmt.Errorf("build: %w", err)
	}
	defer dir.Remove() //nolint:errcheck // else the next build or server does
	log := a.Stderr
	if o.quiet {
		log = io.Discard
	}
	var built []v1.Image
	err = debian.Build(ctx, list, base, dir.Path, log, func(tar io.Reader) error {
		return withClient(ctx, a, c, cl, standalone.ImageNeeds{}, func(cl *client.Client) (err error) {
			built, err = cl.Images.Import(ctx, tar, -1, o.Ref)
			return err
		})
	})
	if err != nil {
		return err
	}
	if o.Keep {
		return runImagePin(ctx, a, o.Ref, true)
	}
	return printNew(a, built, o.quiet)
}
