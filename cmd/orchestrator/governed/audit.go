package governed

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed/present"
)

// NewAuditCommand returns "orchestrator audit" with its commands.
func NewAuditCommand(a *cli.App) *cobra.Command {
	return cli.Group(
		"audit",
		"Read, export and verify the record of calls",
		`  orchestrator audit ls --caller ci --since 1h
  orchestrator audit export > audit.jsonl
  orchestrator audit verify --head "$(cat head)"`,
		newAuditList(a),
		newAuditExport(a),
		newAuditVerify(a),
	)
}

// auditOptions are the flags that select records.
type auditOptions struct {
	filter       client.AuditFilter
	since, until string
}

func (o *auditOptions) register(f *pflag.FlagSet) {
	f.StringVar(&o.filter.Caller, "caller", "", "only records of this `CALLER`")
	f.StringVar(&o.filter.Action, "action", "", "only records of this `TOOL` or action, such as token.create")
	f.StringVar(&o.filter.Verdict, "verdict", "", "only records with this `VERDICT`: allow, ask or deny")
	f.StringVar(&o.filter.Ending, "ending", "", "only records with this `ENDING`, such as timeout or policy_denied")
	f.StringVar(&o.filter.Call, "call", "", "only records of the call with this `ID`")
	f.StringVar(&o.filter.Sandbox, "sandbox", "", "only records of the sandbox with this `ID`")
	f.StringVar(&o.since, "since", "", "only records since this `TIME`: 2026-01-02T15:04:05Z, or 1h for an hour ago")
	f.StringVar(&o.until, "until", "", "only records before this `TIME`")
	f.Int64Var(&o.filter.After, "after", 0, "only records after the one with this `NUMBER`")
}

// auditFilter returns the filter with its times parsed.
func (o auditOptions) auditFilter(cmd *cobra.Command) (client.AuditFilter, error) {
	f := o.filter
	for name, t := range map[string]struct {
		given string
		to    *time.Time
	}{"--since": {o.since, &f.Since}, "--until": {o.until, &f.Until}} {
		if t.given == "" {
			continue
		}
		if d, err := time.ParseDuration(t.given); err == nil && d >= 0 {
			*t.to = time.Now().Add(-d)
			continue
		}
		at, err := time.Parse(time.RFC3339, t.given)
		if err != nil {
			return f, cli.Usage(
				cmd,
				"%s is %q: give a time such as 2026-01-02T15:04:05Z, or how long ago, such as 90m",
				name,
				t.given,
			)
		}
		*t.to = at
	}
	if f.After < 0 || f.Limit < 0 {
		return f, cli.Usage(cmd, "--after and --limit must not be negative")
	}
	return f, nil
}

func auditRow(r v1.AuditRecord) []string {
	ending := r.Ending
	if r.ExitCode != nil && r.Ending == "exited" {
		ending = fmt.Sprintf("exited %d", *r.ExitCode)
	}
	call, input := r.Call, cli.JSONText(r.Input)
	if e := r.Egress; e != nil {
		call, input = r.Sandbox, strings.TrimSpace(
			fmt.Sprintf("%s %s%s: %s", e.Method, cli.HostPort(e.Host, e.Port), e.Path, e.Reason),
		)
	}
	if r.Count > 1 {
		input = fmt.Sprintf("%d refusals", r.Count)
	}
	return []string{
		fmt.Sprint(r.Seq),
		r.Time.Local().Format(time.DateTime),
		r.Kind,
		r.Caller,
		r.Action,
		r.Verdict,
		r.Rule,
		ending,
		call,
		cli.Truncate(input, 60),
	}
}

func newAuditList(a *cli.App) *cobra.Command {
	var o auditOptions
	var oldest bool
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List audit records, the newest last",
		Long: `List audit records, the newest last. A call has two: "open", written before it
runs, and "close", written after its end. A record of kind "egress" is a connection
out of a sandbox, whose id is in the column CALL. A record of kind "refused" stands
for calls that a quota or rate refused: the first one, or the number of those that
followed within a minute.`,
		Example: `  orchestrator audit ls
  orchestrator audit ls --caller ci --ending policy_denied --since 24h
  orchestrator audit ls --call $id -o json
  orchestrator audit ls --action egress --verdict deny --sandbox $id`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := o.auditFilter(cmd)
			if err != nil {
				return err
			}
			f.Newest = !oldest && f.After == 0
			cl, err := a.Client(cmd.Context())
			if err != nil {
				return err
			}
			got, err := cl.Audit.Records(cmd.Context(), f)
			if err != nil {
				return err
			}
			t := &cli.Table{
				Head:     []string{"SEQ", "TIME", "KIND", "CALLER", "ACTION", "VERDICT", "RULE", "ENDING", "CALL", "INPUT"},
				Optional: []string{"CALL", "KIND", "RULE", "VERDICT"},
			}
			return cli.PrintTable(a, got, t, auditRow)
		},
	}
	o.register(c.Flags())
	c.Flags().IntVar(&o.filter.Limit, "limit", 100, "at most `N` records (0: the server's maximum)")
	c.Flags().BoolVar(&oldest, "oldest", false, "list the first records instead of the last")
	return c
}

func newAuditExport(a *cli.App) *cobra.Command {
	var o auditOptions
	c := &cobra.Command{
		Use:   "export",
		Short: "Print audit records as JSON lines",
		Long: `Print audit records as JSON lines, all of them by default. If the exit code is not
0, the output is incomplete.`,
		Example: `  orchestrator audit export > audit.jsonl
  orchestrator audit export --after 1000 --since 24h | jq -c 'select(.verdict == "deny")'`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f, err := o.auditFilter(cmd)
			if err != nil {
				return err
			}
			cl, err := a.Client(cmd.Context())
			if err != nil {
				return err
			}
			return cl.Audit.Export(cmd.Context(), f, &cli.JSONWriter{W: a.Stdout})
		},
	}
	o.register(c.Flags())
	c.Flags().IntVar(&o.filter.Limit, "limit", 0, "at most `N` records (0: all)")
	return c
}

func newAuditVerify(a *cli.App) *cobra.Command {
	var head, dir, key string
	c := &cobra.Command{
		Use:   "verify",
		Short: "Check that no audit record was changed, removed, inserted or moved",
		Long: `Check the chain of all audit records, in all parts of the log. With exit code 1 the
log was changed, and the wrong records are named. Parts that retention deleted are
named too, and are not an error.

It prints the head: the number and hash of the last record. Keep the head elsewhere:
with --head, a later check also detects a log that was cut at its end or replaced.

With --dir it needs no server. It checks the files audit* in a state directory whose
server is stopped, or copies of them. Sealed parts can be copied at any time. Copies
without audit.head need --head.`,
		Example: `  orchestrator audit verify
  orchestrator audit verify -o json | jq -r .head > head
  orchestrator audit verify --head "$(cat head)"
  orchestrator audit verify --dir /backup/audit --key /root/audit.key`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case dir != "":
				return verifyAuditFiles(cmd.Context(), a, dir, key, head)
			case key != "":
				return cli.Usage(cmd, "--key needs --dir")
			}
			return runAuditVerify(cmd.Context(), a, head)
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "`DIR` with the log's files, instead of a server")
	c.Flags().StringVar(&key, "key", "", "`FILE` with the log's key (default: audit.key in DIR)")
	c.Flags().StringVar(&head, "head", "", "`SEQ:HASH` of an earlier check, which the log must contain")
	return c
}

func runAuditVerify(ctx context.Context, a *cli.App, head string) error {
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	r, err := cl.Audit.Verify(ctx, head)
	if err != nil {
		return err
	}
	return printAuditReport(a, r)
}

// verifyAuditFiles verifies files that no server is writing.
func verifyAuditFiles(ctx context.Context, a *cli.App, dir, key, head string) error {
	if pid := cli.ServerPID(dir); pid != "" {
		return cli.Refuse(
			errdefs.ErrUnavailable,
			"state directory %s is held by the server with pid %s: verify without --dir, or copy the files",
			dir,
			pid,
		)
	}
	if key == "" {
		key = filepath.Join(dir, audit.KeyFile)
	}
	r, err := audit.VerifyFiles(ctx, dir, key, head)
	if err != nil {
		return err
	}
	return printAuditReport(a, present.Audit(r))
}

// auditPart describes a part of the log.
func auditPart(p v1.AuditPart) string {
	text := p.State
	if p.RemovedAt != nil {
		text += " by retention at " + p.RemovedAt.Local().Format(time.DateTime)
	}
	if p.First > 0 && p.Last >= p.First {
		text += fmt.Sprintf(", records %d to %d", p.First, p.Last)
	}
	return text
}

func printAuditReport(a *cli.App, r v1.AuditReport) error {
	state := "whole"
	if !r.OK {
		state = "NOT WHOLE"
	}
	t := &cli.Table{}
	t.Add("log", state)
	t.Add("records", fmt.Sprint(r.Records))
	t.Add("head", r.Head)
	for _, p := range r.Parts {
		if len(r.Parts) > 1 || p.State != "open" {
			t.Add(fmt.Sprintf("part %d", p.Part), auditPart(p))
		}
	}
	for _, p := range r.Problems {
		t.Add(fmt.Sprintf("record %d", p.Seq), p.Kind+": "+p.Message)
	}
	if r.More {
		t.Add("", "there are more problems than are listed")
	}
	if err := a.Print(r, t); err != nil {
		return err
	}
	if !r.OK {
		return cli.ErrChecks
	}
	return nil
}
