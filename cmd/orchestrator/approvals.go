package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func (a *app) newApprovalsCommand() *cobra.Command {
	c := group("approvals", "See and answer questions about calls", `  orchestrator approvals watch
  orchestrator approvals approve $id
  orchestrator approvals deny --note 'not on a Friday' $id`,
		a.newApprovalsList(), a.newApprovalsShow(), a.newApprovalsWatch(),
		a.newApprovalsAnswer("approve", "Let calls be carried out", `  orchestrator approvals approve $id
  orchestrator approvals approve --session --note 'for this task' $id`),
		a.newApprovalsAnswer("deny", "Refuse calls", `  orchestrator approvals deny --note 'not on a Friday' $id`),
		a.newApprovalsModify(), a.newApprovalsEscalate())
	c.Aliases = []string{"approval"}
	return c
}

func approvalHead() []string {
	return []string{"ID", "STATE", "ASKED", "EXPIRES", "CALLER", "TOOL", "RULE", "INPUT"}
}

func approvalRow(q v1.Approval) []string {
	expires := ""
	if q.State == "pending" {
		expires = in(q.ExpiresAt)
	}
	state := q.State
	if q.Escalated != "" && state == "pending" {
		state += ", to " + q.Escalated
	}
	return []string{q.ID, state, ago(q.CreatedAt), expires, q.Caller, q.Tool, q.Rule, clip(string(q.Input), 80)}
}

func (a *app) newApprovalsList() *cobra.Command {
	var state string
	var all bool
	c := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List questions, those that wait for an answer unless told otherwise",
		Example: `  orchestrator approvals ls
  orchestrator approvals ls --state denied -o json
  orchestrator approvals ls --all`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				if cmd.Flags().Changed("state") {
					return usage(cmd, "--all and --state are both given: use one of them")
				}
				state = ""
			}
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			got, err := cl.Approvals(cmd.Context(), state)
			if err != nil {
				return err
			}
			return printList(a, got, approvalHead(), approvalRow)
		},
	}
	c.Flags().StringVar(&state, "state", "pending", "`STATE`: pending, approved, denied, expired or cancelled")
	c.Flags().BoolVar(&all, "all", false, "in every state")
	return c
}

func (a *app) newApprovalsShow() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Describe a question with its whole input",
		Example: "  orchestrator approvals show $id",
		Args:    exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			cl, err := a.client(cmd.Context())
			if err != nil {
				return err
			}
			q, err := cl.Approval(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return a.printApproval(q)
		},
	}
}

func (a *app) printApproval(q v1.Approval) error {
	expires, decided := in(q.ExpiresAt), ""
	if q.State != "pending" {
		expires = ""
	}
	if q.DecidedAt != nil {
		decided = ago(*q.DecidedAt)
	}
	t := &table{}
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
		{"input", string(q.Input)},
		{"rule", q.Rule},
		{"reason", q.Reason},
		{"asked", ago(q.CreatedAt)},
		{"expires", expires},
		{"decided", decided},
		{"by", q.By},
		{"scope", q.Scope},
		{"note", q.Note},
		{"modified", string(q.Modified)},
		{"escalated", q.Escalated},
	} {
		if row[1] != "" {
			t.add(row...)
		}
	}
	return a.print(q, t)
}

func (a *app) newApprovalsWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch",
		Short: "Print a line for every question and answer, as they come",
		Long: `Print a line for every question that waits and then for what happens, until
Ctrl-C. A server that is restarted is asked again. With -o json, an event as
JSON on each line.`,
		Example: `  orchestrator approvals watch
  orchestrator approvals watch -o json | jq -r 'select(.type == "asked") | .approval.id'`,
		Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runApprovalsWatch(cmd.Context()) },
	}
}

func (a *app) runApprovalsWatch(ctx context.Context) error {
	cl, err := a.client(ctx)
	if err != nil {
		return err
	}
	err = cl.WatchApprovals(ctx, func(e v1.ApprovalEvent) error {
		if a.flags.output == "json" {
			return a.jsonLines().Encode(e)
		}
		_, err := fmt.Fprintln(a.stdout, approvalLine(e))
		return err
	})
	if _, asked := errors.AsType[*interrupted](err); asked {
		return nil // which is how one stops to watch
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
		line += " " + q.Rule + " " + clip(string(q.Input), 200)
	}
	return escape(line)
}

// answerOptions are those of every answer.
type answerOptions struct {
	session bool
	note    string
}

func (o *answerOptions) register(f *pflag.FlagSet, session bool) {
	if session {
		f.BoolVar(&o.session, "session", false, "also for later calls of this tool in the caller's session that the same rule asks about, with at least this trust (deny: at most)")
	}
	f.StringVar(&o.note, "note", "", "`TEXT` for the caller and the audit")
}

func (o answerOptions) answer(action string) v1.ApprovalAnswer {
	w := v1.ApprovalAnswer{Action: action, Note: o.note}
	if o.session {
		w.Scope = "session"
	}
	return w
}

// someIDs asks for one id or more.
func someIDs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage(cmd, "ID is missing")
	}
	for _, id := range args {
		if id == "" {
			return usage(cmd, "ID is empty")
		}
	}
	return nil
}

func (a *app) newApprovalsAnswer(action, short, example string) *cobra.Command {
	var o answerOptions
	c := &cobra.Command{
		Use:     action + " ID...",
		Short:   short,
		Example: example,
		Args:    someIDs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.runAnswer(cmd.Context(), args, o.answer(action))
		},
	}
	o.register(c.Flags(), true)
	return c
}

// runAnswer gives all ids the same answer. One that cannot be answered does not
// keep it from the others.
func (a *app) runAnswer(ctx context.Context, ids []string, w v1.ApprovalAnswer) error {
	cl, err := a.client(ctx)
	if err != nil {
		return err
	}
	var answered []v1.Approval
	var failed error
	for _, id := range ids {
		q, err := cl.AnswerApproval(ctx, id, w)
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		answered = append(answered, q)
	}
	if len(answered) == 0 {
		return failed
	}
	return errors.Join(failed, printList(a, answered, approvalHead(), approvalRow))
}

func (a *app) newApprovalsModify() *cobra.Command {
	var o answerOptions
	var input, file string
	c := &cobra.Command{
		Use:   "modify ID",
		Short: "Let a call be carried out with another input",
		Example: `  orchestrator approvals modify --input '{"command":"rm -r build"}' $id
  orchestrator approvals modify --input-file input.json --note 'only this folder' $id`,
		Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			w := o.answer("modify")
			b, flag := []byte(input), "--input"
			switch {
			case input != "" && file != "":
				return usage(cmd, "--input and --input-file are both given: use one of them")
			case input == "" && file == "":
				return usage(cmd, "the new input is missing: give --input or --input-file")
			case file != "":
				var err error
				if b, err = a.readInput(cmd.Context(), file); err != nil {
					return err
				}
				flag = "--input-file"
			}
			var err error
			if w.Input, err = jsonObject(cmd, flag, b); err != nil {
				return err
			}
			return a.runAnswer(cmd.Context(), args, w)
		},
	}
	o.register(c.Flags(), false)
	c.Flags().StringVar(&input, "input", "", "`JSON` object that is the call's input instead")
	c.Flags().StringVar(&file, "input-file", "", "`FILE` with it; - is standard input")
	return c
}

func (a *app) newApprovalsEscalate() *cobra.Command {
	var o answerOptions
	var to string
	c := &cobra.Command{
		Use:     "escalate ID...",
		Short:   "Hand questions on to somebody; they stay open",
		Example: "  orchestrator approvals escalate --to security --note 'please have a look' $id",
		Args:    someIDs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return usage(cmd, "--to is missing")
			}
			w := o.answer("escalate")
			w.To = to
			return a.runAnswer(cmd.Context(), args, w)
		},
	}
	o.register(c.Flags(), false)
	c.Flags().StringVar(&to, "to", "", "`NAME` of who is asked now")
	return c
}
