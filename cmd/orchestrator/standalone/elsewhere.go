//go:build !linux

package standalone

import (
	"context"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// RunLocally returns an error: it needs Linux.
func RunLocally(context.Context, *cli.App, config.Config, v1.Run, func(*client.Client, v1.Run) error) error {
	return cli.NeedsLinux("run without a server")
}

// WithImages returns an error: it needs Linux.
func WithImages(context.Context, *cli.App, config.Config, ImageNeeds, func(*client.Client) error) error {
	return cli.NeedsLinux("an image store without a server")
}

// ImportImage returns an error: it needs Linux.
func ImportImage(context.Context, *cli.App, config.Config, string, string) ([]v1.Image, error) {
	return nil, cli.NeedsLinux("an image store without a server")
}

// ImportShared returns an error: it needs Linux.
func ImportShared(context.Context, *cli.App, config.Config, string, string, string) ([]v1.Image, error) {
	return nil, cli.NeedsLinux("an image store without a server")
}

// WithWorkspaces returns an error: it needs Linux.
func WithWorkspaces(context.Context, *cli.App, config.Config, func(*client.Client) error) error {
	return cli.NeedsLinux("a workspace without a server")
}

// CheckUnheld returns an error: it needs Linux.
func CheckUnheld(context.Context, string, string) error {
	return cli.NeedsLinux("a workspace without a server")
}
