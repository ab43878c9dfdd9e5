package governed

import (
	"context"
	"errors"
	"io"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/mcp"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

type mcpOptions struct {
	profile, workspace, template, job string
	readOnly, noServer, noElicit      bool
	runtime, logLevel                 string
}

// NewMCPCommand returns "orchestrator mcp".
func NewMCPCommand(a *cli.App) *cobra.Command {
	var o mcpOptions
	c := &cobra.Command{
		Use:   "mcp",
		Short: "Serve tools to an agent over the Model Context Protocol",
		Long: `Serve the tools of a profile to an agent's MCP client, on standard input and
output, until the client closes them.

If a server answers, it runs the tools. Otherwise this process does, and only the
workspace remains: approvals, budgets and the audit log end with the session. A
server also serves MCP itself at /mcp (streamable HTTP); docs/mcp.md has the
configuration of common clients for both.

All calls of a client run in one sandbox, which is created by the first call and
removed at the end: files in /workspace and background commands remain between
calls. Tool names have underscores instead of dots. If a client cancels a call or
disconnects, its command is killed.

If a rule requires an approval, the client's user is asked, provided that the client
supports elicitation and this caller may answer. Otherwise the call waits for an
answer from elsewhere (orchestrator approvals), and its progress names the request.

Standard output carries only the protocol; the log goes to standard error.`,
		Example: `  orchestrator mcp
  orchestrator mcp --profile phase2 --workspace notes
  claude mcp add sandbox -- orchestrator mcp --workspace notes`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runMCP(cmd.Context(), a, o) },
	}
	f := c.Flags()
	f.StringVar(&o.profile, "profile", "", "`NAME` of the profile whose tools are served (default: yours)")
	f.StringVar(&o.workspace, "workspace", "", "`NAME` of the workspace to mount at /workspace")
	f.BoolVar(&o.readOnly, "read-only", false, "make the workspace read-only")
	f.StringVar(&o.template, "template", "", "`NAME` of the sandbox's template (default: the default template)")
	f.StringVar(&o.job, "job", "", "`UUID` of a job, which has its own workspace")
	f.BoolVar(&o.noElicit, "no-elicit", false, "never ask the client's user for approvals")
	f.BoolVar(&o.noServer, "no-server", false, "run in this process even if a server answers")
	f.StringVar(
		&o.runtime,
		"runtime",
		"",
		"without a server, runtime `NAME`: auto, docker, containerd, oci or kubernetes (ORCHESTRATOR_RUNTIME)",
	)
	f.StringVar(&o.logLevel, "log-level", "warn", "log `LEVEL`: debug, info, warn or error")
	return c
}

func runMCP(ctx context.Context, a *cli.App, o mcpOptions) error {
	c, err := a.Settings()
	if err != nil {
		return err
	}
	cli.SetIfGiven(&c.Runtime, o.runtime)
	c.Log.Level = o.logLevel
	if err := c.Validate(); err != nil {
		return err
	}
	var cl *client.Client
	if !o.noServer {
		if cl, err = a.FindServer(ctx, c); err != nil {
			return err
		}
	}
	if cl != nil {
		defer cl.Close()
		err = mcpOnServer(ctx, a, c, o, cl)
	} else {
		err = mcpLocally(ctx, a, c, o)
	}
	if _, asked := errors.AsType[*cli.Interrupted](context.Cause(ctx)); asked && errors.Is(err, context.Cause(ctx)) {
		return nil // a signal is a normal way to end it
	}
	return err
}

// serveStdio serves MCP on standard input and output, until one of them or ctx ends.
func serveStdio(
	ctx context.Context,
	a *cli.App,
	c config.Config,
	o mcpOptions,
	e mcp.Engine,
	p caller.Principal,
) error {
	s := mcp.New(mcp.Options{
		Engine: e, Version: a.Version, NoElicit: o.noElicit, Log: standalone.Logger(a.Stderr, c.Log),
		Access: mcp.Access{
			Principal: p,
			Profile:   o.profile,
			Workspace: o.workspace,
			Template:  o.template,
			Job:       o.job,
			ReadOnly:  o.readOnly,
		},
	})
	return s.Run(ctx, io.NopCloser(a.Input(ctx)), nopCloseWriter{a.Stdout})
}

// nopCloseWriter is a stream that stays open.
type nopCloseWriter struct{ io.Writer }

// Close implements io.Closer and does nothing.
func (nopCloseWriter) Close() error { return nil }

// mcpOnServer serves MCP with the tools of a server.
func mcpOnServer(ctx context.Context, a *cli.App, c config.Config, o mcpOptions, cl *client.Client) error {
	p := caller.Local("")
	// An answer by the client's user counts only for operators. Only they may list tokens.
	if _, err := cl.Tokens.List(ctx); err != nil {
		if !errdefs.IsPermissionDenied(err) {
			return err
		}
		p.Operator = false
	}
	return serveStdio(ctx, a, c, o, remote{cl}, p)
}

// remote is a server as the engine of an MCP session. The server knows its caller by the token,
// whatever the call says.
type remote struct{ cl *client.Client }

// Tools implements mcp.Engine.
func (r remote) Tools(ctx context.Context, _ caller.Principal, profile string) ([]v1.Tool, error) {
	return r.cl.Tools.List(ctx, profile)
}

// CallTool implements mcp.Engine. It retries while the server restarts.
func (r remote) CallTool(
	ctx context.Context,
	principal caller.Principal,
	name string,
	req v1.ToolCall,
	w tool.Watch,
) (v1.ToolResult, error) {
	o := client.CallOptions{IdempotencyKey: principal.Key, Persist: true, Asked: w.Asked, Started: w.Started}
	if w.Output != nil {
		o.Output = func(stream string, p []byte, _ int64) { w.Output(stream, p) }
	}
	return r.cl.Tools.Call(ctx, name, req, o)
}

// RefuseCall implements mcp.Engine. It returns cause: a call that does not reach the server is not
// recorded there.
func (remote) RefuseCall(_ context.Context, _ caller.Principal, _ string, _ []byte, cause error) error {
	return cause
}

// CallOutput implements mcp.Engine.
func (r remote) CallOutput(
	ctx context.Context,
	_ caller.Principal,
	id string,
	o tool.OutputRequest,
) (v1.Output, error) {
	return r.cl.Tools.Output(
		ctx,
		id,
		client.OutputRequest{Stream: o.Stream, Offset: o.Offset, Limit: o.Limit, Wait: o.Wait},
	)
}

// AnswerApproval implements mcp.Engine. It answers as the caller that the server knows, and the
// note names the one who answered.
func (r remote) AnswerApproval(
	ctx context.Context,
	p caller.Principal,
	id string,
	a v1.ApprovalAnswer,
) (v1.Approval, error) {
	a.Note = p.Caller
	return r.cl.Approvals.Answer(ctx, id, a)
}

// EndSession implements mcp.Engine. It removes the session's sandbox.
func (r remote) EndSession(ctx context.Context, _ caller.Principal, session string) error {
	return r.cl.Tools.EndSession(ctx, session)
}
