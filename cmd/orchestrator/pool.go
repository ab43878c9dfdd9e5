package main

import (
	"fmt"

	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func (a *app) newPoolCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "pool",
		Short:   "Show the state of the warm pools",
		Example: "  orchestrator pool\n  orchestrator pool -o json",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			list, err := cl.Pools(cmd.Context())
			if err != nil {
				return err
			}
			head := []string{"TEMPLATE", "IMAGE", "MIN", "MAX", "TARGET", "CREATING", "WARM", "LEASED", "WAITING", "CREATED", "FAILED", "LAST ERROR"}
			return printList(a, list, head, func(p v1.Pool) []string {
				return []string{
					p.Template, p.Image, fmt.Sprint(p.Min), fmt.Sprint(p.Max), fmt.Sprint(p.Target), fmt.Sprint(p.Creating), fmt.Sprint(p.Warm), fmt.Sprint(p.Leased),
					fmt.Sprint(p.Waiting), fmt.Sprint(p.Created), fmt.Sprint(p.Failed), oneLine(p.LastError),
				}
			})
		},
	}
}
