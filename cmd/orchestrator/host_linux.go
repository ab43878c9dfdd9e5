package main

import (
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/service"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
)

// hostCommands returns the commands of the host that has the sandboxes.
func hostCommands(a *cli.App) []*cobra.Command {
	return []*cobra.Command{
		service.NewServeCommand(a), service.NewDownCommand(a), service.NewBackupCommand(a), service.NewRestoreCommand(a),
		service.NewDoctorCommand(a), service.NewKubernetesCommand(a),
		standalone.NewJanitorCommand(a),
	}
}
