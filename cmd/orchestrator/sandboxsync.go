package main

import (
	"context"
	"fmt"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const classHelp = "`CLASS` of isolation that is wanted at least: container, gvisor or vm"

func (a *app) newSandboxSync() *cobra.Command {
	return &cobra.Command{
		Use:   "sync SANDBOX",
		Short: "Bring a workspace up to what its sandbox has",
		Long: `Bring a workspace up to what its sandbox has. That is needed only where the workspace is carried into the sandbox and not
mounted (class gvisor, remote engines), and happens by itself when the lease ends.`,
		Example: "  orchestrator sandbox sync $id",
		Args:    exactArgs("SANDBOX"),
		RunE:    func(cmd *cobra.Command, args []string) error { return a.runSandboxSync(cmd.Context(), args[0]) },
	}
}

func (a *app) runSandboxSync(ctx context.Context, id string) error {
	cl, err := a.client(ctx)
	if err != nil {
		return err
	}
	got, err := cl.SyncSandbox(ctx, id)
	if err != nil {
		return err
	}
	t := &table{}
	if got.Carried {
		t.add("CARRIED", fmt.Sprintf("%d files and folders, %s", got.Entries, units.BytesSize(float64(got.Bytes))))
	} else {
		t.add("CARRIED", "nothing: the workspace is mounted or read-only, or there is none")
	}
	return a.print(got, t)
}

// templateOfClass is the template of a run without a server that names none: the
// default one, or the first that is as strong as asked. Where none is, the
// engine says so of the default one.
func (a *app) templateOfClass(c config.Config, class string) (string, error) {
	list, err := c.Sources(a.configFile())
	if err != nil {
		return "", err
	}
	best := ""
	for _, src := range list {
		if src.Err != nil || !runtime.Class(src.Template.Class).AtLeast(runtime.Class(class)) {
			continue
		}
		if src.Name == config.DefaultTemplate {
			return src.Name, nil
		}
		if best == "" || src.Name < best {
			best = src.Name
		}
	}
	if best == "" {
		return config.DefaultTemplate, nil
	}
	return best, nil
}
