package governed

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// NewApprovalsCommand returns "orchestrator approvals" with its commands.
func NewApprovalsCommand(a *cli.App) *cobra.Command {
	c := cli.Group("approvals", "See and answer questions about calls", `  orchestrator approvals watch
  orchestrator approvals approve $id
  orchestrator approvals deny --note 'not on a Friday' $id`,
		newApprovalsList(a), newApprovalsShow(a), newApprovalsWatch(a),
		newApprovalsAnswer(a, "approve", "Let calls be carried out", `  orchestrator approvals approve $id
  orchestrator approvals approve --session --note 'for this task' $id`),
		newApprovalsAnswer(a, "deny", "Refuse calls", `  orchestrator approvals deny --note 'not on a Friday' $id`),
		newApprovalsModify(a), newApprovalsEscalate(a))
	c.Aliases = []string{"approval"}
	return c
}

func approvalTable() *cli.Table {
	return &cli.Table{
		Head:     []string{"ID", "STATE", "ASKED", "EXPIRES", "CALLER", "TOOL", "RULE", "INPUT"},
		Optional: []string{"ASKED", "RULE"},
	}
}

func approvalRow(q v1.Approval) []string {
	expires := ""
	if q.State == "pending" {
		expires = cli.Until(q.ExpiresAt)
	}
	state := q.State
	if q.Escalated != "" && state == "pending" {
		state += ", to " + q.Escalated
	}
	return []string{
		q.ID,
		state,
		cli.Ago(q.CreatedAt),
		expires,
		q.Caller,
		q.Tool,
		q.Rule,
		cli.Truncate(cli.JSONText(q.Input), 80),
	}
}

func newApprovalsList(a *cli.App) *cobra.Command {
	var f client.ApprovalFilter
	var all bool
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List approval requests, by default the pending ones",
		Example: `  orchestrator approvals ls
  orchestrator approvals ls --state denied -o json
  orchestrator approvals ls --all`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				if cmd.Flags().Changed("state") {
					return cli.Usage(cmd, "--all and --state are both given: use one of them")
				}
				f.State = ""
			}
			if f.Limit < 0 {
				return cli.Usage(cmd, "--limit must not be negative")
			}
			cl, err := a.Client(cmd.Context())
			if err != nil {
				return err
			}
			got, err := cl.Approvals.Select(cmd.Context(), f)
			if err != nil {
				return err
			}
			return cli.PrintTable(a, got, approvalTable(), approvalRow)
		},
	}
	c.Flags().StringVar(&f.State, "state", "pending", "`STATE`: pending, approved, denied, expired or cancelled")
	c.Flags().BoolVar(&all, "all", false, "list requests in every state")
	c.Flags().StringVar(&f.Before, "before", "", "only requests older than the one with this `ID`")
	c.Flags().IntVar(&f.Limit, "limit", 0, "at most `N` requests (0: 1000)")
	return c
}

func newApprovalsShow(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Describe an approval request with its input",
		Example: "  orchestrator approvals show $id",
		Args:    cli.ExactArgs("ID"),
		RunE: a.WithClient(func(cmd *cobra.Command, cl *client.Client, args []string) error {
			q, err := cl.Approvals.Get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return printApproval(a, q)
		}),
	}
}

func printApproval(a *cli.App, q v1.Approval) error {
	expires, decided := cli.Until(q.ExpiresAt), ""
	if q.State != "pending" {
		expires = ""
	}
	if q.DecidedAt != nil {
		decided = cli.Ago(*q.DecidedAt)
	}
	t := &cli.Table{}
	for _, row := range [][]string{
		{"id", q.ID},
		{"state", q.State},
		{"kind", q.Kind},
		{"call", q.Call},
		{"caller", q.Caller},
		{"session", q.Session},
		{"profile", q.Profile},
		{"tool", q.Tool},
		{"trust", strconv.Itoa(q.Trust)},
		{"rule", q.Rule},
		{"reason", q.Reason},
		{"asked", cli.Ago(q.CreatedAt)},
		{"expires", expires},
		{"decided", decided},
		{"by", q.By},
		{"scope", q.Scope},
		{"note", q.Note},
		{"escalated", q.Escalated},
	} {
		if row[1] != "" {
			t.Add(row...)
		}
	}
	if err := a.Print(q, t); err != nil || a.Flags.Output == "json" {
		return err
	}
	text := "input:\n" + cli.InputText(q.Input)
	if len(q.Modified) > 0 {
		text += "input as the approver changed it:\n" + cli.InputText(q.Modified)
	}
	_, err := fmt.Fprint(a.Stdout, text)
	return err
}

func newApprovalsWatch(a *cli.App) *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Follow approval requests and answers",
		Long: `Print a line for each pending approval request, and then for each request and answer,
until Ctrl-C. It reconnects to a server that restarts. With -o json, it prints one
JSON object on each line.`,
		Example: `  orchestrator approvals watch
  orchestrator approvals watch -o json | jq -r 'select(.type == "asked") | .approval.id'`,
		Args: cli.ExactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return runApprovalsWatch(cmd.Context(), a) },
	}
}

func runApprovalsWatch(ctx context.Context, a *cli.App) error {
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	err = cl.Approvals.Watch(ctx, func(e v1.ApprovalEvent) error {
		if a.Flags.Output == "json" {
			return a.PrintJSONLine(e)
		}
		_, err := fmt.Fprintln(a.Stdout, approvalLine(e))
		return err
	})
	if _, asked := errors.AsType[*cli.Interrupted](err); asked {
		return nil // interrupting is how a user stops watching
	}
	return err
}

func approvalLine(e v1.ApprovalEvent) string {
	q := e.Approval
	line := fmt.Sprintf("%s %-9s %s %s %s", time.Now().Format(time.TimeOnly), e.Type, q.ID, q.Caller, q.Tool)
	switch e.Type {
	case "decided":
		line += " " + q.State
		if q.By != "" {
			line += " by " + q.By
		}
		if q.Note != "" {
			line += ": " + q.Note
		}
	case "escalated":
		line += " to " + q.Escalated
	default:
		line += " " + q.Rule + " " + cli.Truncate(cli.JSONText(q.Input), 200)
	}
	return cli.Escape(line)
}

// answerOptions are the flags of approve and deny.
type answerOptions struct {
	session bool
	note    string
}

func (o *answerOptions) register(f *pflag.FlagSet, session bool) {
	if session {
		f.BoolVar(
			&o.session,
			"session",
			false,
			"also answer later requests of the same rule for this tool in the caller's session, with at least this trust (deny: at most)",
		)
	}
	f.StringVar(&o.note, "note", "", "`TEXT` for the caller and the audit log")
}

func (o answerOptions) answer(action string) v1.ApprovalAnswer {
	w := v1.ApprovalAnswer{Action: action, Note: o.note}
	if o.session {
		w.Scope = "session"
	}
	return w
}

// atLeastOneID requires one id or more.
func atLeastOneID(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cli.Usage(cmd, "ID is missing")
	}
	for _, id := range args {
		if id == "" {
			return cli.Usage(cmd, "ID is empty")
		}
	}
	return nil
}

func newApprovalsAnswer(a *cli.App, action, short, example string) *cobra.Command {
	var o answerOptions
	c := &cobra.Command{
		Use:     action + " ID...",
		Short:   short,
		Example: example,
		Args:    atLeastOneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			return runAnswer(cmd.Context(), a, args, o.answer(action))
		},
	}
	o.register(c.Flags(), true)
	return c
}

// runAnswer gives all ids the same answer. It continues after one that cannot be answered.
func runAnswer(ctx context.Context, a *cli.App, ids []string, w v1.ApprovalAnswer) error {
	cl, err := a.Client(ctx)
	if err != nil {
		return err
	}
	var answered []v1.Approval
	var failed error
	for _, id := range ids {
		q, err := cl.Approvals.Answer(ctx, id, w)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		answered = append(answered, q)
	}
	if len(answered) == 0 {
		return failed
	}
	return errors.Join(failed, cli.PrintTable(a, answered, approvalTable(), approvalRow))
}

func newApprovalsModify(a *cli.App) *cobra.Command {
	var o answerOptions
	var input, file string
	c := &cobra.Command{
		Use:   "modify ID",
		Short: "Approve a call with a changed input",
		Example: `  orchestrator approvals modify --input '{"command":"rm -r build"}' $id
  orchestrator approvals modify --input-file input.json --note 'only this folder' $id`,
		Args: cli.ExactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w := o.answer("modify")
			b, flag := []byte(input), "--input"
			switch {
			case input != "" && file != "":
				return cli.Usage(cmd, "--input and --input-file are both given: use one of them")
			case input == "" && file == "":
				return cli.Usage(cmd, "the new input is missing: give --input or --input-file")
			case file != "":
				var err error
				if b, err = readInput(cmd.Context(), a, file); err != nil {
					return err
				}
				flag = "--input-file"
			}
			var err error
			if w.Input, err = jsonObject(cmd, flag, b); err != nil {
				return err
			}
			return runAnswer(cmd.Context(), a, args, w)
		},
	}
	o.register(c.Flags(), false)
	c.Flags().StringVar(&input, "input", "", "new input of the call, a `JSON` object")
	c.Flags().StringVar(&file, "input-file", "", "`FILE` with the new input; - is standard input")
	return c
}

func newApprovalsEscalate(a *cli.App) *cobra.Command {
	var o answerOptions
	var to string
	c := &cobra.Command{
		Use:     "escalate ID...",
		Short:   "Delegate approval requests to another approver",
		Example: "  orchestrator approvals escalate --to security --note 'please have a look' $id",
		Args:    atLeastOneID,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return cli.Usage(cmd, "--to is missing")
			}
			w := o.answer("escalate")
			w.To = to
			return runAnswer(cmd.Context(), a, args, w)
		},
	}
	o.register(c.Flags(), false)
	c.Flags().StringVar(&to, "to", "", "`NAME` of the new approver")
	return c
}
