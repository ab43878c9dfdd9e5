// Package governed has the commands about governed calls: tool, mcp, approvals, audit, policy,
// profile and token. "policy check", "profile" and "audit verify --dir" need no server.
package governed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewToolCommand returns "orchestrator tool" with its commands.
func NewToolCommand(a *cli.App) *cobra.Command {
	return cli.Group("tool", "List and call tools", `  orchestrator tool ls
  orchestrator tool call system.bash command='ls -l'`,
		newToolList(a), newToolCall(a))
}

func newToolList(a *cli.App) *cobra.Command {
	var profile string
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List the tools that can be called",
		Long: `List the tools that can be called, with the trust that each needs.

With -o json, it prints the schemas of their inputs and outputs too.`,
		Example: `  orchestrator tool ls
  orchestrator tool ls --profile gateway -o json`,
		Args: cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			tools, err := cl.Tools.List(cmd.Context(), profile)
			if err != nil {
				return err
			}
			return cli.PrintList(a, tools, []string{"NAME", "TRUST", "STATE", "EFFECTS", "DESCRIPTION"}, toolRow)
		}),
	}
	c.Flags().StringVar(&profile, "profile", "", "`NAME` of the profile whose tools are listed (default: yours)")
	return c
}

func toolRow(t v1.Tool) []string {
	state := "enabled"
	if !t.Enabled {
		state = "disabled"
	}
	what, _, _ := strings.Cut(t.Description, "\n")
	return []string{t.Name, fmt.Sprint(t.Trust), state, strings.Join(t.Effects, " "), cli.Truncate(what, 70)}
}

type toolCallOptions struct {
	input, inputFile string
	call             v1.ToolCall
	key              string
	progress         bool
	amount           float64
}

func newToolCall(a *cli.App) *cobra.Command {
	var o toolCallOptions
	c := &cobra.Command{
		Use:   "call [flags] NAME [KEY=VALUE...]",
		Short: "Call a tool and print its result",
		Long: `Call a tool and print its result as text for models, or the whole result with
-o json.

The input is JSON, or KEY=VALUE pairs, which are converted to the types in the
tool's schema: repeat the key for a list, and write objects as JSON. KEY:=JSON
gives a value as JSON, whatever the schema says.

A call that waits for an approval prints the request's id on standard error. It
keeps waiting if the server restarts: the call has an idempotency key and runs at
most once. Ctrl-C cancels the call and kills its command. docs/exit-codes.md lists
the exit codes.`,
		Example: `  orchestrator tool call system.bash command='ls -l' timeout_ms=5000
  orchestrator tool call system.run argv=git argv=status --session s1 --workspace notes
  orchestrator tool call fs.write --input '{"path":"a.txt","content":"hello"}' --workspace notes
  orchestrator tool call run_shell --profile readonly command='ls' -o json`,
		Args: cli.FirstArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error { return runToolCall(cmd.Context(), a, cmd, o, args) },
	}
	f := c.Flags()
	f.StringVar(&o.input, "input", "", "input of the call, a `JSON` object")
	f.StringVar(&o.inputFile, "input-file", "", "`FILE` with the input as JSON; - is standard input")
	f.StringVar(&o.call.Sandbox, "sandbox", "", "`ID` of a leased sandbox to run in")
	f.StringVar(&o.call.Session, "session", "", "`NAME` of a session, which keeps one sandbox for its calls")
	f.StringVar(&o.call.Workspace, "workspace", "", "`NAME` of the workspace to mount at /workspace")
	f.BoolVar(&o.call.ReadOnly, "read-only", false, "make the workspace read-only")
	f.StringVar(&o.call.Job, "job", "", "`UUID` of a job, which has its own workspace")
	f.StringVar(&o.call.Template, "template", "", "`NAME` of the sandbox's template (default: the default template)")
	f.StringVar(&o.call.Profile, "profile", "", "`NAME` of the profile of the call (default: yours)")
	f.BoolVar(&o.call.RaiseTrust, "raise-trust", false, "request an approval if the tool needs more trust than you have")
	f.Float64Var(&o.amount, "amount", 0, "`NUMBER` that the call counts in a budget of amounts")
	f.BoolVar(&o.progress, "progress", false, "copy a command's output to standard error as it arrives")
	f.StringVar(&o.key, "idempotency-key", "", "run at most once for this `KEY` (default: a random key)")
	return c
}

func runToolCall(ctx context.Context, a *cli.App, cmd *cobra.Command, o toolCallOptions, args []string) error {
	name, pairs := args[0], args[1:]
	if cmd.Flags().Changed("amount") {
		o.call.Amount = &o.amount
	}
	given := 0
	for _, yes := range []bool{o.input != "", o.inputFile != "", len(pairs) > 0} {
		if yes {
			given++
		}
	}
	if given > 1 {
		return cli.Usage(cmd, "--input, --input-file and KEY=VALUE exclude each other: use one of them")
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	if o.call.Input, err = toolInput(ctx, a, cmd, cl, o, name, pairs); err != nil {
		return err
	}
	w := watchCall(a, o)
	question, tell := "", w.Asked
	w.Asked = func(q v1.Approval) {
		question = q.ID
		tell(q)
	}
	w.Started = func(string) { question = "" }
	r, err := cl.Tools.Call(ctx, name, o.call, w)
	if err != nil {
		if _, gaveUp := errors.AsType[*cli.Interrupted](err); gaveUp && o.key == "" {
			withdrawApproval(ctx, cl, question)
		}
		return err
	}
	if err := printToolResult(a, r); err != nil {
		return err
	}
	return cli.ToolError(r)
}

// withdrawTime bounds the last request of an interrupted command.
const withdrawTime = 2 * time.Second

// withdrawApproval denies the approval request of a call that was given up, if the caller may.
// No other caller has the call's idempotency key, so it cannot be retried.
func withdrawApproval(ctx context.Context, cl *client.Client, question string) {
	if question == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	// If the caller may not answer, it expires.
	_, _ = cl.Approvals.Answer(ctx, question, v1.ApprovalAnswer{Action: "deny", Note: "its caller gave up"})
}

// toolInput returns the input, from whichever flag or argument gives it.
func toolInput(
	ctx context.Context,
	a *cli.App,
	cmd *cobra.Command,
	cl *client.Client,
	o toolCallOptions,
	name string,
	pairs []string,
) ([]byte, error) {
	switch {
	case o.input != "":
		return jsonObject(cmd, "--input", []byte(o.input))
	case o.inputFile != "":
		b, err := readInput(ctx, a, o.inputFile)
		if err != nil {
			return nil, err
		}
		return jsonObject(cmd, "--input-file", b)
	case len(pairs) == 0:
		return nil, nil
	}
	tools, err := cl.Tools.List(ctx, o.call.Profile)
	if err != nil {
		return nil, err
	}
	for _, t := range tools {
		if t.Name == name {
			return pairsInput(cmd, t, pairs)
		}
	}
	return nil, nil // the server refuses the unknown tool and records it
}

// maxInput bounds an input that is read from a file, in bytes.
const maxInput = 32 << 20

func readInput(ctx context.Context, a *cli.App, file string) ([]byte, error) {
	in := a.Input(ctx)
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read the input: %w", err)
	}
	return b, nil
}

// watchCall reports on standard error what a call waits for.
func watchCall(a *cli.App, o toolCallOptions) client.CallOptions {
	asked, away := "", false
	w := client.CallOptions{IdempotencyKey: o.key, Persist: true}
	w.Asked = func(q v1.Approval) {
		if q.ID == asked && !away {
			return
		}
		asked, away = q.ID, false
		why := q.Rule
		if q.Reason != "" {
			why += ": " + q.Reason
		}
		a.Note("waiting for approval %s (%s) until %s; answer with `orchestrator approvals approve %s`, or deny",
			q.ID, why, q.ExpiresAt.Local().Format("15:04:05"), q.ID)
	}
	w.Away = func(err error) {
		if !away {
			a.Note("%s; asking again", cli.Describe(err))
		}
		away = true
	}
	if o.progress {
		w.Output = func(_ string, p []byte, missed int64) {
			if missed > 0 {
				a.Note("%d bytes omitted", missed)
			}
			a.Stderr.Write(p) //nolint:errcheck // for the eye
		}
	}
	return w
}

// printToolResult prints the text for models, or the whole result as JSON.
func printToolResult(a *cli.App, r v1.ToolResult) error {
	if a.Flags.Output == "json" {
		return a.PrintJSON(r)
	}
	text := r.Text
	if text == "" && len(r.Output) > 0 && string(r.Output) != "null" {
		text = string(r.Output)
	}
	if text == "" {
		return nil
	}
	if !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	_, err := io.WriteString(a.Stdout, text)
	return err
}
