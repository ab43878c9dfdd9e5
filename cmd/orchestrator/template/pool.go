package template

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewPoolCommand returns "orchestrator pool" with its commands.
func NewPoolCommand(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "pool",
		Short: "Show the state of the warm pools",
		Long: `Show the state of the warm pools. WARM is the number of warm sandboxes and the
number that is wanted.`,
		Example: "  orchestrator pool\n  orchestrator pool -o json",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			list, err := cl.Pools(cmd.Context())
			if err != nil {
				return err
			}
			t := &cli.Table{
				Head: []string{
					"TEMPLATE", "IMAGE", "WARM", "LEASED", "CREATING", "WAITING", "CREATED", "FAILED", "MIN", "MAX", "ERROR",
				},
				Optional: []string{"MIN", "MAX", "CREATED"},
			}
			return cli.PrintTable(a, list, t, func(p v1.Pool) []string {
				return []string{
					p.Template, p.Image, fmt.Sprintf("%d/%d", p.Warm, p.Target), fmt.Sprint(p.Leased), fmt.Sprint(p.Creating),
					fmt.Sprint(p.Waiting), fmt.Sprint(p.Created), fmt.Sprint(p.Failed), fmt.Sprint(p.Min), fmt.Sprint(p.Max),
					cli.OneLine(p.LastError),
				}
			})
		}),
	}
}
