package governed

import (
	"context"
	"errors"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// mcpLocally serves MCP with the tools of an engine in this process.
func mcpLocally(ctx context.Context, a *cli.App, c config.Config, o mcpOptions) (err error) {
	if o.template == "" {
		o.template = config.DefaultTemplate
	}
	if c, err = standalone.SelectTemplate(a, c, o.template); err != nil {
		return err
	}
	if err := standalone.MakeStateDir(c.StateDir); err != nil {
		return err
	}
	h := &standalone.LocalRun{
		App:      a,
		Config:   c,
		Log:      standalone.Logger(a.Stderr, c.Log),
		Template: o.template,
		Governed: true,
	}
	defer func() { err = errors.Join(err, h.Close(ctx)) }()
	if err := h.Open(ctx, o.workspace); err != nil {
		return err
	}
	return h.Serve(ctx, func() error { return serveStdio(ctx, a, c, o, h.Engine.Governed, caller.Local("")) })
}
