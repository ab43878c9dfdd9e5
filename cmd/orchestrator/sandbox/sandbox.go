// Package sandbox has the commands about sandboxes and what runs in them: run, sandbox, exec,
// enter, shell, session, logs, cp, forward, ps, top and events.
//
// All use the server, except run, which does without one if none answers.
package sandbox

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewSandboxCommand returns "orchestrator sandbox" with its commands.
func NewSandboxCommand(a *cli.App) *cobra.Command {
	return cli.Group(
		"sandbox",
		"Lease sandboxes and end them",
		`  id=$(orchestrator sandbox create --workspace notes -q)
  orchestrator exec $id -- ls -l
  orchestrator sandbox rm $id`,
		newSandboxCreate(
			a,
		),
		newSandboxEnter(a),
		newSandboxList(a),
		newSandboxSync(a),
		newSandboxStop(a),
		newSandboxRemove(a),
		newSandboxInspect(a),
		newSandboxEgress(a),
	)
}

type sandboxOptions struct {
	egressOptions
	name                string
	template, workspace string
	mode, class         string
	readOnly, quiet     bool
	env, labels         []string
	ttl, idle, wait     time.Duration
	whenEmpty, key      string
}

func newSandboxCreate(a *cli.App) *cobra.Command {
	var o sandboxOptions
	c := &cobra.Command{
		Use:   "create",
		Short: "Lease a sandbox",
		Example: `  orchestrator sandbox create
  orchestrator sandbox create --template default --workspace notes --read-only --ttl 10m
  orchestrator sandbox create --env TOKEN=abc --when-empty cold -o json
  orchestrator sandbox create --egress tls://pypi.org --egress tls://files.pythonhosted.org`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runSandboxCreate(cmd.Context(), a, cmd, o) },
	}
	f := c.Flags()
	f.StringVar(&o.name, "name", "", "`NAME` to use instead of the id, unique among your live sandboxes")
	f.StringVar(&o.template, "template", "", "`NAME` of the template (default: the default template)")
	f.StringVar(&o.workspace, "workspace", "", "`NAME` of the workspace to mount at /workspace")
	f.BoolVar(&o.readOnly, "read-only", false, "make the workspace read-only")
	f.StringVar(&o.mode, "mode", "", cli.ModeHelp)
	f.StringVar(&o.class, "class", "", classHelp)
	f.StringArrayVarP(
		&o.env,
		"env",
		"e",
		nil,
		"`KEY=VALUE` for all its commands, or KEY to pass on your own; can be repeated",
	)
	f.StringArrayVar(&o.labels, "label", nil, "label `KEY=VALUE`; can be repeated")
	f.DurationVar(&o.ttl, "ttl", 0, "end it after this time (0: the server's default)")
	f.DurationVar(&o.idle, "idle", 0, "end it after this time without a call (0: the server's default)")
	o.egressOptions.register(f)
	f.StringVar(&o.whenEmpty, "when-empty", "", "`ACTION` if no sandbox is warm: wait (default), cold or refuse")
	f.DurationVar(&o.wait, "wait", 0, "maximum wait for a sandbox (0: the server's default)")
	f.StringVar(&o.key, "idempotency-key", "", "lease at most once for this `KEY`")
	f.BoolVarP(&o.quiet, "quiet", "q", false, "print only the id")
	return c
}

func runSandboxCreate(ctx context.Context, a *cli.App, cmd *cobra.Command, o sandboxOptions) error {
	env, err := a.Environment(cmd, o.env)
	if err != nil {
		return err
	}
	labels, err := cli.ParsePairs(cmd, "--label", o.labels)
	if err != nil {
		return err
	}
	egress, err := o.egress(cmd)
	if err != nil {
		return err
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	s, err := cl.CreateSandbox(ctx, v1.SandboxRequest{
		Name: o.name, Template: o.template, Workspace: o.workspace, ReadOnly: o.readOnly, Mode: o.mode, Class: o.class, Env: env, Labels: labels,
		TTLMS: cli.Millis(
			o.ttl,
		), IdleMS: cli.Millis(o.idle), WhenEmpty: o.whenEmpty, WaitMS: cli.Millis(o.wait), Egress: egress,
	}, cli.IdempotencyKey(o.key)...)
	if err != nil {
		return err
	}
	if o.quiet {
		_, err := fmt.Fprintln(a.Stdout, s.ID)
		return err
	}
	return printSandbox(a, s)
}

func printSandbox(a *cli.App, s v1.Sandbox) error {
	t := &cli.Table{}
	add := func(name, value string) {
		if value != "" {
			t.Add(name, value)
		}
	}
	add("ID", s.ID)
	add("NAME", s.Name)
	add("STATE", s.State)
	add("REASON", s.Reason)
	add("DETAIL", cli.Escape(s.Detail))
	add("TEMPLATE", s.Template)
	add("IMAGE", s.Image)
	add("RUNTIME", s.Runtime)
	add("CLASS", s.Class)
	add("WORKSPACE", WorkspaceOf(s))
	add("LABELS", labelText(s.Labels))
	add("WARM", fmt.Sprint(s.Warm))
	add("CREATED", cli.Ago(s.CreatedAt))
	add("LAST USE", cli.Ago(s.LastUseAt))
	if s.EndedAt != nil {
		add("ENDED", cli.Ago(*s.EndedAt))
	} else {
		add("EXPIRES", cli.Until(s.ExpiresAt))
		add("IDLE LIMIT", (time.Duration(s.IdleMS) * time.Millisecond).String())
	}
	return a.Print(s, t)
}

// WorkspaceOf describes the workspace of a sandbox for a table.
func WorkspaceOf(s v1.Sandbox) string {
	if s.Workspace != "" && s.ReadOnly {
		return s.Workspace + " (read-only)"
	}
	return s.Workspace
}

func labelText(labels map[string]string) string {
	out := make([]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, k+"="+labels[k])
	}
	return strings.Join(out, ",")
}

func newSandboxList(a *cli.App) *cobra.Command {
	var ended bool
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List leased sandboxes",
		Example: "  orchestrator sandbox ls\n  orchestrator sandbox ls --ended -o json",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			list, err := cl.Sandboxes(cmd.Context(), ended)
			if err != nil {
				return err
			}
			t := &cli.Table{
				Head:     []string{"ID", "NAME", "STATE", "TEMPLATE", "WORKSPACE", "AGE", "EXPIRES", "REASON"},
				Optional: []string{"EXPIRES"},
			}
			return cli.PrintTable(a, list, t, func(s v1.Sandbox) []string {
				expires := cli.Until(s.ExpiresAt)
				if s.EndedAt != nil {
					expires = ""
				}
				return []string{s.ID, s.Name, s.State, s.Template, WorkspaceOf(s), cli.Age(s.CreatedAt), expires, s.Reason}
			})
		}),
	}
	c.Flags().BoolVar(&ended, "ended", false, "include ended sandboxes")
	return c
}

func newSandboxInspect(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "inspect SANDBOX",
		Short:   "Describe a sandbox, also an ended one",
		Example: "  orchestrator sandbox inspect $id -o json",
		Args:    cli.ExactArgs("SANDBOX"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			s, err := cl.Sandbox(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printSandbox(a, s)
		}),
	}
}

func newSandboxStop(a *cli.App) *cobra.Command {
	var grace time.Duration
	c := &cobra.Command{
		Use:     "stop SANDBOX",
		Short:   "Terminate a sandbox's commands, then destroy it",
		Example: "  orchestrator sandbox stop $id --grace 10s",
		Args:    cli.ExactArgs("SANDBOX"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			s, err := cl.StopSandbox(cmd.Context(), args[0], grace)
			if err != nil {
				return err
			}
			return printSandbox(a, s)
		}),
	}
	c.Flags().DurationVar(&grace, "grace", 5*time.Second, "time for background commands to end")
	return c
}

func newSandboxRemove(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "rm SANDBOX...",
		Short:   "Destroy sandboxes at once",
		Example: "  orchestrator sandbox rm $id",
		Args: func(cmd *cobra.Command, args []string) error {
			if slices.Contains(args, "") {
				return cli.Usage(cmd, "SANDBOX is empty")
			}
			return cli.FirstArgs("SANDBOX")(cmd, args)
		},
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			for _, id := range args {
				if err := cl.RemoveSandbox(cmd.Context(), id); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
