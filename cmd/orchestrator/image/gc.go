package image

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
)

func newImageCollect(a *cli.App) *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use:   "gc",
		Short: "Remove images that nothing needs",
		Long: `Remove leftover downloads, images that were unused for images.max_age, and the
longest unused images while all together exceed images.budget. Images stay that a
template, a sandbox or a running operation needs, that are pinned, or that were used
in the last minutes. The server does the same hourly and after each pull and import.`,
		Example: `  orchestrator image gc --dry-run
  orchestrator image gc -o json`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runImageCollect(cmd.Context(), a, dry) },
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only report what would be removed, and why the rest stays")
	return c
}

func runImageCollect(ctx context.Context, a *cli.App, dry bool) error {
	var got v1.ImageCollection
	need := standalone.ImageNeeds{Removal: true, Templates: true}
	err := withImages(ctx, a, need, func(cl *client.Client) (err error) {
		got, err = cl.Images.Collect(ctx, dry)
		return err
	})
	if err != nil {
		return err
	}
	t := &cli.Table{Head: []string{"ID", "REFS", "DISK", "USED", "REMOVED", "WHY"}}
	for _, i := range got.Items {
		removed := ""
		if i.Removed {
			removed = "yes"
		}
		t.Add(i.ID, abbreviate(i.Refs), cli.Size(i.DiskBytes), cli.Ago(i.UsedAt), removed, i.Why)
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
	_, err = fmt.Fprintf(
		a.Stdout,
		"%s %s; %s%s are used\n",
		cli.Size(got.FreedBytes),
		words,
		cli.Size(got.UsedBytes),
		budget,
	)
	return err
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
	return listImages(ctx, a, standalone.ImageNeeds{}, func(cl *client.Client) ([]v1.Image, error) {
		return cl.Images.Pin(ctx, ref, pinned)
	})
}
