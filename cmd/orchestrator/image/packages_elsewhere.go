//go:build !linux

package image

import (
	"context"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

func runPackages(context.Context, *cli.App, buildOptions) error {
	return cli.NeedsLinuxHost("a build from packages")
}
