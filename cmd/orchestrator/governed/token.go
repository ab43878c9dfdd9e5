package governed

import (
	"context"
	"fmt"
	"time"

	units "github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewTokenCommand returns "orchestrator token" with its commands.
func NewTokenCommand(a *cli.App) *cobra.Command {
	return cli.Group(
		"token",
		"Make, list and revoke the tokens of callers",
		`  orchestrator token create --caller ci --profile gateway --trust 2 > ci.token
  orchestrator token revoke $id`,
		newTokenCreate(a),
		newTokenList(a),
		newTokenRevoke(a),
	)
}

type tokenOptions struct {
	request v1.TokenRequest
	memory  string
	disk    string
	ttl     time.Duration
}

func newTokenCreate(a *cli.App) *cobra.Command {
	var o tokenOptions
	c := &cobra.Command{
		Use:   "create --caller NAME",
		Short: "Create a token and print its secret",
		Long: `Create a token. Its secret is printed on standard output and stored nowhere: the
service keeps a hash. A caller presents it with ORCHESTRATOR_TOKEN, --token-file
or as a bearer token.`,
		Example: `  orchestrator token create --caller ci --profile gateway --trust 2 > ci.token
  orchestrator token create --caller alice --trust 3 --sandboxes 5 --memory 4g --calls 1000 --ttl 24h
  orchestrator token create --caller admin --operator --note 'the web page'`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runTokenCreate(cmd.Context(), a, cmd, o) },
	}
	f := c.Flags()
	f.StringVar(&o.request.Caller, "caller", "", "`NAME` of the caller")
	f.StringVar(&o.request.Profile, "profile", "", "`NAME` of the caller's profile (default: the service's)")
	f.IntVar(&o.request.Trust, "trust", 0, "`LEVEL` of trust, from 0 to 3")
	f.IntVar(&o.request.Quotas.Sandboxes, "sandboxes", 0, "at most `N` sandboxes at once (0: the service's default)")
	f.StringVar(&o.memory, "memory", "", "total memory `SIZE` of the sandboxes, such as 4g (default: the service's)")
	f.StringVar(&o.disk, "disk", "", "total `SIZE` of the workspaces, such as 50g (default: the service's)")
	f.Int64Var(&o.request.Quotas.Calls, "calls", 0, "at most `N` tool calls per day in UTC (0: the service's default)")
	f.DurationVar(&o.ttl, "ttl", 0, "lifetime (0: unlimited)")
	f.BoolVar(
		&o.request.Operator,
		"operator",
		false,
		"allow everything: create tokens, answer approvals, read the audit log",
	)
	f.StringVar(&o.request.Note, "note", "", "`TEXT` that describes its purpose")
	return c
}

func runTokenCreate(ctx context.Context, a *cli.App, cmd *cobra.Command, o tokenOptions) error {
	r := o.request
	switch {
	case r.Caller == "":
		return cli.Usage(cmd, "--caller is missing")
	case o.ttl < 0 || o.ttl > 0 && o.ttl < time.Millisecond:
		return cli.Usage(cmd, "--ttl is %s: at least 1ms, or 0 for never", o.ttl)
	}
	r.TTLMS = o.ttl.Milliseconds()
	if o.memory != "" {
		n, err := units.RAMInBytes(o.memory)
		if err != nil || n <= 0 {
			return cli.Usage(cmd, "--memory is %q: give a size such as 512m or 4g", o.memory)
		}
		r.Quotas.MemoryBytes = n
	}
	if o.disk != "" {
		n, err := units.RAMInBytes(o.disk)
		if err != nil || n <= 0 {
			return cli.Usage(cmd, "--disk is %q: give a size such as 512m or 50g", o.disk)
		}
		r.Quotas.DiskBytes = n
	}
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	t, err := cl.Tokens.Create(ctx, r)
	if err != nil {
		return err
	}
	if a.Flags.Output == "json" {
		return a.PrintJSON(t)
	}
	if _, err := fmt.Fprintln(a.Stdout, t.Secret); err != nil {
		return err
	}
	a.Note(
		"token %s of %s; its secret is not shown again: give it as ORCHESTRATOR_TOKEN or with --token-file",
		t.ID,
		t.Caller,
	)
	return nil
}

func tokenTable() *cli.Table {
	return &cli.Table{
		Head: []string{
			"ID", "CALLER", "PROFILE", "TRUST", "STATE", "MADE", "LAST USED", "SANDBOXES", "MEMORY", "DISK", "CALLS", "NOTE",
		},
		Optional: []string{"MADE", "DISK", "MEMORY", "CALLS", "SANDBOXES", "NOTE"},
	}
}

func tokenRow(t v1.Token) []string {
	number := func(n int64) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}
	memory := ""
	if t.Quotas.MemoryBytes > 0 {
		memory = cli.Size(t.Quotas.MemoryBytes)
	}
	disk := ""
	if t.Quotas.DiskBytes > 0 {
		disk = cli.Size(t.Quotas.DiskBytes)
	}
	used := ""
	if t.LastUseAt != nil {
		used = cli.Ago(*t.LastUseAt)
	}
	trust := fmt.Sprint(t.Trust)
	if t.Operator {
		trust += ", operator"
	}
	return []string{
		t.ID, t.Caller, t.Profile, trust, tokenState(t), cli.Ago(t.CreatedAt), used,
		number(int64(t.Quotas.Sandboxes)), memory, disk, number(t.Quotas.Calls), t.Note,
	}
}

func tokenState(t v1.Token) string {
	switch {
	case t.RevokedAt != nil:
		return "revoked"
	case t.ExpiresAt == nil:
		return "good"
	case time.Until(*t.ExpiresAt) <= 0:
		return "expired"
	}
	return "ends " + cli.Until(*t.ExpiresAt)
}

func newTokenList(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List tokens, newest first, without their secrets",
		Example: "  orchestrator token ls",
		Args:    cli.ExactArgs(),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, _ []string) error {
			got, err := cl.Tokens.List(cmd.Context())
			if err != nil {
				return err
			}
			return cli.PrintTable(a, got, tokenTable(), tokenRow)
		}),
	}
}

func newTokenRevoke(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "revoke ID",
		Aliases: []string{"rm"},
		Short:   "Revoke a token",
		Long: `Revoke a token. The next request with it is refused. Running calls continue, and
what its caller has, such as sandboxes, stays.`,
		Example: "  orchestrator token revoke $id",
		Args:    cli.ExactArgs("ID"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			t, err := cl.Tokens.Revoke(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			table := tokenTable()
			table.Add(tokenRow(t)...)
			return a.Print(t, table)
		}),
	}
}
