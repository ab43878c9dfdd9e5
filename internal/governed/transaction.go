package governed

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
)

// Endings of tool calls, besides those of commands, and limits of tool calls.
const (
	endedOK         = profile.EndingOK
	EndedFailed     = profile.EndingFailed
	policyDenied    = profile.EndingPolicy
	approvalDenied  = profile.EndingApproval
	recordTimeout   = 10 * time.Second
	maxRememberTool = 512 << 10
)

// CallTool runs one tool call: identify, open the audit record, validate, policy, approval, lease,
// run, release, close the record. A refusal is a result. An error means that the request is invalid
// or could not be carried out.
func (s *Service) CallTool(
	ctx context.Context,
	p caller.Principal,
	name string,
	r v1.ToolCall,
	w Watch,
) (v1.ToolResult, error) {
	if s.opts.Config == nil {
		return v1.ToolResult{}, ErrUngoverned
	}
	id, err := uuid.NewV7()
	if err != nil {
		return v1.ToolResult{}, err
	}
	// Include profile and trust in the fingerprint: another token of the caller must not get an
	// answer, or use an approval, that its own rights would not allow.
	request := struct {
		Tool, Whose string
		Level       int
		v1.ToolCall
	}{name, s.profileOf(p), p.Trust, r}
	t := &transaction{
		s:         s,
		g:         s.opts.Config,
		principal: p,
		id:        id.String(),
		name:      name,
		r:         r,
		watch:     w,
		sum:       func() (string, error) { return idempotency.Hash(request) },
	}
	if res, done, err := t.answerLimitedEarly(ctx); done {
		t.notifyEnd()
		return res, err
	}
	ran := false
	res, err := idempotency.Do(
		ctx,
		s.opts.Keys,
		p,
		OpTool,
		id.String(),
		request,
		func(ctx context.Context) (v1.ToolResult, error) {
			ran = true
			defer t.notifyEnd()
			return t.observe(ctx)
		},
		storedToolResult,
	)
	if err != nil && !ran { // The key belongs to another request, or the caller left.
		err = s.RefuseCall(ctx, p, name, r.Input, err)
	}
	return res, err
}

// transaction is the state of one tool call in progress.
type transaction struct {
	s         *Service
	g         *Config
	principal caller.Principal
	id        string
	name      string
	r         v1.ToolCall
	watch     Watch
	sum       func() (string, error) // returns the request's fingerprint

	profile  *profile.Compiled
	tool     *profile.CompiledTool
	input    json.RawMessage // as sent by the caller or changed by an approver
	inputErr error           // why the input is invalid, found before the policy is asked
	unhide   []func()        // end the redaction of the input's secrets
	shaped   *profile.Call   // nil until the input was checked
	ready    tool.Prepared

	verdict     *policy.Verdict
	approval    string
	by          string
	unused      string // the approval to mark as used before the tool runs
	reserved    string // the reservation of an approval budget
	entry       *audit.Entry
	record      audit.Record // closes the audit entry
	sandbox     string
	toolStarted bool // the tool itself was called
	mayHaveRun  bool // the tool may have changed something
	began       time.Time
}

// execute opens the audit record, runs the call and closes the record. Without a record the call
// does not run. A call that a quota or rate refuses is only counted.
func (t *transaction) execute(ctx context.Context) (res v1.ToolResult, err error) {
	t.start()
	unknown := t.find()
	if err := t.checkLimits(unknown == nil); err != nil {
		return t.answerLimited(ctx, unknown == nil, err)
	}
	defer func() {
		for _, show := range t.unhide {
			show()
		}
	}()
	opening := t.opening()
	opening.Trace = tracing.ID(ctx)
	if t.inputErr = t.hideSecrets(ctx); t.inputErr != nil {
		replaceInputWithHash(&opening)
	}
	// The record is written in the background while the call is checked. Opened waits for it before
	// anything is asked, leased or run.
	if t.entry, err = t.g.Audit.Start(ctx, opening); err != nil {
		return res, unrecorded(err)
	}
	defer func() {
		t.record.DurationMS = core.Milliseconds(time.Since(t.began))
		t.record.Approval, t.record.By, t.record.Sandbox = t.approval, t.by, t.sandbox
		if err != nil {
			t.record.Error = auditText(err)
		}
		finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		if cerr := t.entry.Close(finish, t.record); cerr != nil {
			t.s.log.Error("failed to record the end of a call", "call", t.id, "error", cerr)
		}
	}()
	if unknown != nil {
		return t.answer(ctx, nil, tool.Outcome{}, unknown)
	}
	t.record.Ending = EndedFailed // answer replaces it, unless the tool panics
	out, outcome, err := t.executeRecorded(ctx)
	res, err = t.answer(ctx, out, outcome, err)
	t.refundBudget(ctx, err)
	return res, t.keepKey(ctx, err)
}

func (t *transaction) start() {
	t.began = time.Now()
	t.input = t.r.Input
	if len(t.input) == 0 {
		t.input = json.RawMessage("{}")
	}
}

func unrecorded(err error) error {
	return fmt.Errorf("the call cannot be recorded and was not run: %w: %w", errdefs.ErrUnavailable, err)
}

func (t *transaction) opening() audit.Record {
	c := t.principal
	return audit.Record{
		Kind: audit.KindOpen, Call: t.id, Caller: c.Caller, Token: c.Token, Profile: t.profileName(), Trust: c.Trust,
		Session: t.r.Session, Via: c.Via, Action: audit.TruncateName(t.name), Input: t.input,
		Workspace: audit.TruncateName(t.r.Workspace), Uncharged: c.Operator,
	}
}

// executeRecorded checks, approves and runs a call whose tool was found.
func (t *transaction) executeRecorded(ctx context.Context) (any, tool.Outcome, error) {
	var none tool.Outcome // of a call that does not reach the tool
	in, end := stage.Begin(ctx, t.s.opts.Stages, stage.Policy)
	questions, err := t.admit(in)
	end(err)
	if err != nil {
		return nil, none, err
	}
	if err := stage.Time(ctx, t.s.opts.Stages, stage.Audit, t.entry.Opened); err != nil {
		return nil, none, unrecorded(err)
	}
	if err := t.obtainApproval(ctx, questions); err != nil {
		return nil, none, err
	}
	return t.runTool(ctx)
}

// Watch observes a tool call in progress.
type Watch = tool.Watch
