package sandbox

import (
	"context"
	"fmt"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

const classHelp = "`CLASS` of isolation that is wanted at least: container, gvisor or vm"

func newSandboxSync(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "sync SANDBOX",
		Short: "Copy a sandbox's files back to its workspace",
		Long: `Copy a sandbox's files back to its workspace. That is needed only if the workspace
is copied into the sandbox and not mounted (class gvisor, remote engines). It also
happens when the lease ends.`,
		Example: "  orchestrator sandbox sync $id",
		Args:    cli.ExactArgs("SANDBOX"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runSandboxSync(cmd.Context(), a, args[0]) },
	}
}

func runSandboxSync(ctx context.Context, a *cli.App, id string) error {
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	got, err := cl.SyncSandbox(ctx, id)
	if err != nil {
		return err
	}
	t := &cli.Table{}
	if got.Carried {
		t.Add("CARRIED", fmt.Sprintf("%d files and folders, %s", got.Entries, units.BytesSize(float64(got.Bytes))))
	} else {
		t.Add("CARRIED", "nothing: the workspace is mounted or read-only, or there is none")
	}
	return a.Print(got, t)
}
