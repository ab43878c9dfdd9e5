package image

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

func newImageCollect(a *cli.App) *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "Remove images that nothing needs",
		Long: `Remove left downloads, images that were unused for images.max_age, and while
all together are over images.budget the longest unused ones. What a template, a
sandbox or something under way needs stays, and so does what is pinned or was
used within the last minutes. The server does so by itself, too: hourly, and
after each pull and import.`,
		Example: `  orchestrator image gc --dry-run
  orchestrator image gc -o json`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runImageCollect(cmd.Context(), a, dry) },
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only tell what would go, and why the rest stays")
	return c
}

func runImageCollect(ctx context.Context, a *cli.App, dry bool) error {
	c, err := a.Valid()
	if err != nil {
		return err
	}
	cl, err := a.Server(ctx, c)
	if err != nil {
		return err
	}
	var got v1.ImageCollection
	if cl != nil {
		got, err = cl.CollectImages(ctx, dry)
	} else {
		got, err = standalone.WithImages(ctx, a, c, func(s *images.Store) (v1.ImageCollection, error) { return collectHere(ctx, a, c, s, dry) })
	}
	if err != nil {
		return err
	}
	t := &cli.Table{Head: []string{"ID", "REFS", "DISK", "USED", "REMOVED", "WHY"}}
	for _, i := range got.Items {
		removed := ""
		if i.Removed {
			removed = "yes"
		}
		t.Add(shortID(i.ID), someOf(i.Refs), cli.Size(i.DiskBytes), cli.Ago(i.UsedAt), removed, i.Why)
	}
	if err := a.Print(got, t); err != nil || a.Flags.Output == "json" {
		return err
	}
	budget := ""
	if got.BudgetBytes > 0 {
		budget = " of " + cli.Size(got.BudgetBytes)
	}
	words := "freed"
	if dry {
		words = "would be freed"
	}
	_, err = fmt.Fprintf(a.Stdout, "%s %s; %s%s are used\n", cli.Size(got.FreedBytes), words, cli.Size(got.UsedBytes), budget)
	return err
}

// collectHere collects without a server; templates' images stay.
func collectHere(ctx context.Context, a *cli.App, c config.Config, s *images.Store, dry bool) (v1.ImageCollection, error) {
	use, err := unusedImages(ctx, c)
	if err != nil {
		return v1.ImageCollection{}, err
	}
	defer use.Close()
	templates, err := c.Sources(a.ConfigFile())
	if err != nil { // what cannot be read may need an image
		return v1.ImageCollection{}, err
	}
	needed := map[string][]string{}
	for _, t := range templates {
		if t.Err != nil {
			return v1.ImageCollection{}, fmt.Errorf("template %s: %w", t.Name, t.Err)
		}
		if img, err := s.Resolve(t.Template.Image); err == nil {
			needed[img.ID] = append(needed[img.ID], "template:"+t.Name)
		}
	}
	bounds := standalone.ImageBounds(c.Images)
	got, err := s.Collect(ctx, images.Collection{Budget: bounds.Budget, MaxAge: bounds.MaxAge, Needed: needed, Dry: dry})
	return engine.PresentCollection(got, bounds, dry), err
}

func newImagePin(a *cli.App, use, short string, pinned bool) *cobra.Command {
	return &cobra.Command{
		Use:     use + " REF",
		Short:   short,
		Example: "  orchestrator image " + use + " tools:1",
		Args:    cli.ExactArgs("REF"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runImagePin(cmd.Context(), a, args[0], pinned) },
	}
}

func runImagePin(ctx context.Context, a *cli.App, ref string, pinned bool) error {
	c, err := a.Valid()
	if err != nil {
		return err
	}
	cl, err := a.Server(ctx, c)
	if err != nil {
		return err
	}
	var list []v1.Image
	if cl != nil {
		list, err = cl.PinImage(ctx, ref, pinned)
	} else {
		list, err = standalone.WithImages(ctx, a, c, func(s *images.Store) ([]v1.Image, error) {
			img, err := s.Pin(ref, pinned)
			if err != nil {
				return nil, err
			}
			return present(img), nil
		})
	}
	if err != nil {
		return err
	}
	return printImages(a, list)
}
