//go:build !linux

package governed

import (
	"context"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func mcpLocally(context.Context, *cli.App, config.Config, mcpOptions) error {
	return cli.NeedsLinux("mcp without a server")
}
