package sandbox

import (
	"github.com/spf13/cobra"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewPSCommand returns "orchestrator ps".
func NewPSCommand(a *cli.App) *cobra.Command {
	var all, ended bool
	c := &cobra.Command{
		Use:   "ps",
		Short: "Show leased sandboxes",
		Long: `Show your leased sandboxes. With --all, which is for operators, show all live
sandboxes: those of all callers, and those that are warm or being created.`,
		Example: `  orchestrator ps
  orchestrator ps --all
  orchestrator ps -q | xargs -n1 orchestrator sandbox rm`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all && ended {
				return cli.Usage(cmd, "--all and --ended are both given: use one of them")
			}
			cl, err := a.Client(cmd.Context())
			if err != nil {
				return err
			}
			list, err := cl.Sandboxes(cmd.Context(), ended)
			if all {
				list, err = cl.AllSandboxes(cmd.Context())
			}
			if err != nil {
				return err
			}
			t := &cli.Table{
				Head:     []string{"ID", "NAME", "TEMPLATE", "CLASS", "STATE", "AGE", "CALLER", "WORKSPACE", "LAST USE"},
				Optional: []string{"CLASS", "LAST USE", "CALLER"},
			}
			return cli.PrintTable(a, list, t, psRow)
		},
	}
	f := c.Flags()
	f.BoolVarP(&all, "all", "a", false, "include all live sandboxes of all callers (operators only)")
	f.BoolVar(&ended, "ended", false, "include ended sandboxes")
	return c
}

func psRow(s v1.Sandbox) []string {
	used := cli.Ago(s.LastUseAt)
	if s.Caller == "" {
		used = ""
	}
	return []string{s.ID, s.Name, s.Template, s.Class, s.State, cli.Age(s.CreatedAt), s.Caller, WorkspaceOf(s), used}
}

// NewLogsCommand returns "orchestrator logs", which is short for "shell logs".
func NewLogsCommand(a *cli.App) *cobra.Command {
	c := newShellLogs(a)
	c.Example = `  orchestrator logs $sh
  orchestrator logs -f --stderr $sh`
	return c
}
