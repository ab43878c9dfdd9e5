// Package image has the commands of "orchestrator image": import, pull, list, mark, collect and
// build images. They use the server if one answers, and the image store of the state directory
// otherwise.
package image

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// NewCommand returns "orchestrator image" with its commands.
func NewCommand(a *cli.App) *cobra.Command {
	return cli.Group(
		"image",
		"Pull, import and list images; with or without a server",
		"  orchestrator image pull debian:12\n  orchestrator image import sandbox.tar\n  orchestrator image ls",
		newImagePull(a),
		newImageBuild(a),
		newImageImport(a),
		newImageList(a),
		newImageRemove(a),
		newImageCollect(a),
		newImagePin(
			a,
			"pin",
			"Protect an image from collection",
			true,
		),
		newImagePin(a, "unpin", "Allow the collection of an image again", false),
	)
}

// withImages calls do with a client of the server that answers, or of this process if none does.
func withImages(ctx context.Context, a *cli.App, need standalone.ImageNeeds, do func(*client.Client) error) error {
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	cl, err := a.FindServer(ctx, c)
	if err != nil {
		return err
	}
	return withClient(ctx, a, c, cl, need, do)
}

// withClient calls do with cl, or with a client of this process if cl is nil.
func withClient(
	ctx context.Context,
	a *cli.App,
	c config.Config,
	cl *client.Client,
	need standalone.ImageNeeds,
	do func(*client.Client) error,
) error {
	if cl != nil {
		return do(cl)
	}
	return standalone.WithImages(ctx, a, c, need, do)
}

// listImages prints the images that get returns.
func listImages(
	ctx context.Context,
	a *cli.App,
	need standalone.ImageNeeds,
	get func(*client.Client) ([]v1.Image, error),
) error {
	var list []v1.Image
	err := withImages(ctx, a, need, func(cl *client.Client) (err error) {
		list, err = get(cl)
		return err
	})
	if err != nil {
		return err
	}
	return printImages(a, list)
}

// printImages prints one row for each image, with all its names.
func printImages(a *cli.App, list []v1.Image) error {
	if a.Flags.Output == "json" {
		return cli.PrintList(a, list, nil, func(v1.Image) []string { return nil }) // one item for each name
	}
	t := &cli.Table{
		Head:     []string{"ID", "REFS", "SIZE", "AGE", "USED", "PINNED", "USED BY"},
		Optional: []string{"USED", "PINNED"},
	}
	at := map[string]int{}
	for _, i := range list {
		ref := i.Ref
		if ref == "" && len(i.Digests) > 0 {
			ref = i.Digests[0]
		}
		if n, twice := at[i.ID]; twice {
			t.Rows[n][1] += ", " + ref
			continue
		}
		at[i.ID] = len(t.Rows)
		pinned := ""
		if i.Pinned {
			pinned = "yes"
		}
		used := cli.Ago(i.UsedAt)
		if len(i.UsedBy) > 0 {
			used = "now"
		}
		t.Add(i.ID, ref, cli.Size(i.SizeBytes), cli.Age(i.CreatedAt), used, pinned, abbreviate(i.UsedBy))
	}
	return a.Print(nil, t)
}

// abbreviate joins a list so that it fits into a cell.
func abbreviate(list []string) string {
	const most = 2
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

func newImageImport(a *cli.App) *cobra.Command {
	var ref, shared string
	c := &cobra.Command{
		Use:   "import PATH",
		Short: "Import a rootfs tar, a docker-archive or an OCI layout",
		Long: `Import an image: a root filesystem as tar, the output of "docker save", or an OCI
layout, each plain or compressed with gzip; - is standard input. An OCI layout can
be a directory only without a server.

With --shared, the image is imported once into a store in DIR, and new state
directories get links to it. Stores that were unused for a week are removed.`,
		Example: `  orchestrator image import sandbox.tar
  orchestrator image import --ref tools:1 rootfs.tar.gz
  docker save alpine | orchestrator image import -`,
		Args: cli.ExactArgs("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if shared == "" {
				return runImageImport(cmd.Context(), a, args[0], ref)
			}
			return runImageImportShared(cmd.Context(), a, args[0], ref, shared)
		},
	}
	c.Flags().StringVar(&shared, "shared", "", "`DIR` of images that state directories without a server share")
	c.Flags().StringVar(&ref, "ref", "", "`NAME` of the image (default: the archive's)")
	return c
}

func runImageImport(ctx context.Context, a *cli.App, path, ref string) error {
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	cl, err := a.FindServer(ctx, c)
	if err != nil {
		return err
	}
	list, err := importImage(ctx, a, c, cl, path, ref)
	if err != nil {
		return err
	}
	return printImages(a, list)
}

// importImage imports an image into the server's store, or without one into the state directory's.
func importImage(
	ctx context.Context,
	a *cli.App,
	c config.Config,
	cl *client.Client,
	path, ref string,
) (list []v1.Image, err error) {
	if cl == nil && path != "-" {
		defer a.StartProgress("importing "+path, 0).Stop()
		return standalone.ImportImage(ctx, a, c, path, ref)
	}
	in, n, done, err := a.OpenInput(ctx, path)
	if err != nil {
		return nil, err
	}
	defer done()
	progress := a.StartProgress("importing "+path, n)
	defer progress.Stop()
	err = withClient(ctx, a, c, cl, standalone.ImageNeeds{}, func(cl *client.Client) (err error) {
		list, err = cl.Images.Import(ctx, progress.Count(in), n, ref)
		return err
	})
	return list, err
}

// runImageImportShared needs a state directory without a server: its server finds the image when it
// starts.
func runImageImportShared(ctx context.Context, a *cli.App, path, ref, shared string) error {
	c, err := a.ValidSettings()
	if err != nil {
		return err
	}
	progress := a.StartProgress("importing "+path, 0)
	list, err := standalone.ImportShared(ctx, a, c, path, ref, shared)
	progress.Stop()
	if err != nil {
		return err
	}
	return printImages(a, list)
}

func newImageList(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List images",
		Example: "  orchestrator image ls -o json",
		Args:    cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return listImages(cmd.Context(), a, standalone.ImageNeeds{}, func(cl *client.Client) ([]v1.Image, error) {
				return cl.Images.List(cmd.Context())
			})
		},
	}
}

func newImageRemove(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "rm REF",
		Short:   "Remove an image name, and the image with its last name",
		Example: "  orchestrator image rm tools:1",
		Args:    cli.ExactArgs("REF"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runImageRemove(cmd.Context(), a, args[0]) },
	}
}

func runImageRemove(ctx context.Context, a *cli.App, ref string) error {
	return withImages(ctx, a, standalone.ImageNeeds{Removal: true}, func(cl *client.Client) error {
		return cl.Images.Remove(ctx, ref)
	})
}
