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
		Use:     "pool",
		Short:   "Show the state of the warm pools",
		Example: "  orchestrator pool\n  orchestrator pool -o json",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			list, err := cl.Pools(cmd.Context())
			if err != nil {
				return err
			}
			head := []string{
				"TEMPLATE",
				"IMAGE",
				"MIN",
				"MAX",
				"TARGET",
				"CREATING",
				"WARM",
				"LEASED",
				"WAITING",
				"CREATED",
				"FAILED",
				"LAST ERROR",
			}
			return cli.PrintList(a, list, head, func(p v1.Pool) []string {
				return []string{
					p.Template, p.Image, fmt.Sprint(p.Min), fmt.Sprint(p.Max), fmt.Sprint(p.Target),
					fmt.Sprint(p.Creating), fmt.Sprint(p.Warm), fmt.Sprint(p.Leased),
					fmt.Sprint(p.Waiting), fmt.Sprint(p.Created), fmt.Sprint(p.Failed), cli.OneLine(p.LastError),
				}
			})
		}),
	}
}
