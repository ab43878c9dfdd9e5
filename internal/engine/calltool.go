package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Endings of tool calls, besides those of commands, and limits of tool calls.
const (
	endedOK         = profile.EndingOK
	endedFailed     = profile.EndingFailed
	policyDenied    = profile.EndingPolicy
	approvalDenied  = profile.EndingApproval
	recordTimeout   = 10 * time.Second
	maxRememberTool = 512 << 10
)

// CallTool runs one tool call: identify, validate, policy, approval, lease, bind, exec, audit,
// release. A refusal is a result. An error means that the request is invalid or could not be
// carried out.
func (e *Engine) CallTool(ctx context.Context, p caller.Principal, name string, r v1.ToolCall, w Watch) (v1.ToolResult, error) {
	if e.opts.Governance == nil {
		return v1.ToolResult{}, errUngoverned
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
	}{name, e.profileOf(p), p.Trust, r}
	t := &toolCall{e: e, g: e.opts.Governance, principal: p, id: id.String(), name: name, r: r, watch: w, sum: func() (string, error) { return idempotency.Hash(request) }}
	if res, done, err := t.answerLimitedEarly(ctx); done {
		return res, err
	}
	ran := false
	res, err := idempotency.Do(ctx, e.idem, p, opTool, id.String(), request, func(ctx context.Context) (v1.ToolResult, error) {
		ran = true
		return t.execute(ctx)
	}, storedToolResult)
	if err != nil && !ran { // The key belongs to another request, or the caller left.
		err = e.RefuseCall(ctx, p, name, r.Input, err)
	}
	return res, err
}

// storedToolResult returns the part of a result that is stored under an idempotency key. A result
// that is too large loses its output and says so in Detail.
func storedToolResult(r v1.ToolResult) v1.ToolResult {
	if len(r.Output)+len(r.Text) > maxRememberTool {
		r.Output = nil
		r.Text, _ = idempotency.Shorten(r.Text, idempotency.AnswerBytes)
		r.Detail = cmp.Or(r.Detail, "the output was too long to be kept for its Idempotency-Key")
	}
	return r
}

// toolCall is the state of one tool call in progress.
type toolCall struct {
	e         *Engine
	g         *Governance
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
	began       time.Time
}

// refusal is the error of a call that is refused. It becomes the call's result.
type refusal struct {
	ending  string
	verdict policy.Verdict
	again   time.Duration // when a retry may be allowed; 0 if waiting does not help
}

// Error implements error with the verdict's message.
func (r *refusal) Error() string { return r.verdict.Message }

// execute opens the audit record, runs the call and closes the record. Without a record the call
// does not run. A call that a quota or rate refuses is only counted.
func (t *toolCall) execute(ctx context.Context) (res v1.ToolResult, err error) {
	t.start()
	unknown := t.find()
	if err := t.checkLimits(ctx, unknown == nil); err != nil {
		return t.answerLimited(ctx, unknown == nil, err)
	}
	defer func() {
		for _, show := range t.unhide {
			show()
		}
	}()
	opening := t.opening()
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
		if err != nil {
			t.record.Error = auditText(err)
		}
		finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
		defer cancel()
		if cerr := t.entry.Close(finish, t.record); cerr != nil {
			t.e.log.Error("failed to record the end of a call", "call", t.id, "error", cerr)
		}
	}()
	if unknown != nil {
		return t.answer(ctx, nil, noOutcome, unknown)
	}
	out, outcome, err := t.executeRecorded(ctx)
	return t.answer(ctx, out, outcome, err)
}

func (t *toolCall) start() {
	t.began = time.Now()
	t.input = t.r.Input
	if len(t.input) == 0 {
		t.input = json.RawMessage("{}")
	}
}

func unrecorded(err error) error {
	return fmt.Errorf("the call cannot be recorded and was not run: %w: %w", errdefs.ErrUnavailable, err)
}

func (t *toolCall) opening() audit.Record {
	c := t.principal
	return audit.Record{
		Kind: audit.KindOpen, Call: t.id, Caller: c.Caller, Token: c.Token, Profile: t.profileName(), Trust: c.Trust, Session: t.r.Session, Via: c.Via,
		Action: audit.TruncateName(t.name), Input: t.input, Workspace: audit.TruncateName(t.r.Workspace), Uncharged: c.Operator,
	}
}

// noOutcome is the outcome of calls that did not reach the tool.
var noOutcome tool.Outcome

// executeRecorded checks, approves and runs a call whose tool was found.
func (t *toolCall) executeRecorded(ctx context.Context) (any, tool.Outcome, error) {
	none := noOutcome
	questions, err := t.admit(ctx)
	if err != nil {
		return nil, none, err
	}
	if err := t.entry.Opened(ctx); err != nil {
		return nil, none, unrecorded(err)
	}
	if err := t.obtainApproval(ctx, questions); err != nil {
		return nil, none, err
	}
	out, outcome, err := t.runTool(ctx)
	if err != nil {
		t.refundBudget(ctx, err)
	}
	return out, outcome, err
}

// find looks up the profile and the tool.
func (t *toolCall) find() (err error) {
	if t.r.Profile != "" && !t.principal.Operator && t.r.Profile != t.principal.Profile {
		return &usererror.InvalidError{Field: "profile", Message: "is not yours to choose: leave it out", Class: errdefs.ErrPermissionDenied}
	}
	if t.profile, err = t.g.profile(t.profileName()); err != nil {
		return &usererror.InvalidError{Field: "profile", Message: "cannot be used: " + err.Error(), Class: err}
	}
	if t.tool, err = t.profile.Tool(t.name); err != nil {
		return err
	}
	t.name = t.tool.Name()
	return nil
}

func (t *toolCall) profileName() string {
	if t.r.Profile != "" {
		return t.r.Profile
	}
	return t.e.profileOf(t.principal)
}

// admit makes every decision that needs no approval: whether this caller may use the tool, whether
// the input is valid, and the policy's verdict on the command. It returns the reasons to ask for
// approval.
func (t *toolCall) admit(ctx context.Context) ([]approval.Reason, error) {
	if !t.tool.Enabled() {
		return nil, t.refuse(policy.Verdict{Action: policy.Deny, Class: profile.ClassDisabled, Rule: "disabled:" + t.name, Message: fmt.Sprintf("Tool %s is disabled", t.name)})
	}
	var questions []approval.Reason
	if need := t.tool.Trust(); t.principal.Trust < need {
		v := policy.Verdict{
			Action: policy.Deny, Class: profile.ClassTrust, Rule: fmt.Sprintf("trust:%d", need),
			Message: fmt.Sprintf("Tool %s needs trust level %d, and this caller has %d", t.name, need, t.principal.Trust),
		}
		if !t.r.RaiseTrust || t.profile.Profile.RaiseTrust != approval.Prompt {
			return nil, t.refuse(v)
		}
		questions = append(questions, approval.Reason{Kind: approval.KindTrust, Rule: v.Rule, Message: v.Message})
	}
	v, err := t.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if v != nil && v.Action == policy.Ask {
		questions = append(questions, approval.Reason{Kind: approval.KindCall, Rule: v.Rule, Message: v.Message})
	}
	return questions, nil
}

// prepare validates the input and asks the policy. It runs again for an input that an approver
// changed: approval does not override a denial.
func (t *toolCall) prepare(ctx context.Context) (*policy.Verdict, error) {
	if t.inputErr != nil {
		return nil, t.inputErr
	}
	shaped, err := t.tool.Prepare(ctx, t.input, t.expressionVars())
	if err != nil {
		return nil, inputErrorForCaller(err)
	}
	t.shaped = shaped
	if t.ready, err = shaped.Base.Check(shaped.Input); err != nil {
		return nil, err
	}
	if err := t.validatePlacement(); err != nil {
		return nil, err
	}
	v := t.decide()
	if v == nil {
		return nil, nil
	}
	t.verdict = v
	if v.Action == policy.Deny {
		return nil, t.refuse(*v)
	}
	return v, nil
}

// maxToolInput bounds an input. A file of the maximum size fits as base64.
const maxToolInput = 16 << 20

// decide returns the policy's verdict on the call's command, or nil if there is no command or no
// policy.
func (t *toolCall) decide() *policy.Verdict {
	c := t.ready.Command
	p := t.tool.Policy()
	switch {
	case c == nil || p == nil:
		return nil
	case c.Shell != "":
		v := p.Command(c.Shell)
		return &v
	case c.Argv != nil:
		v := p.Argv(c.Argv)
		return &v
	}
	argv, v := p.Line(c.Line)
	c.Argv = argv
	return &v
}

func (t *toolCall) refuse(v policy.Verdict) error { return t.refuseFor(v, 0) }

func (t *toolCall) refuseFor(v policy.Verdict, again time.Duration) error {
	if v.Message == "" {
		v.Message = "refused by rule " + v.Rule
	}
	t.verdict = &v
	return &refusal{ending: policyDenied, verdict: v, again: again}
}

// expressionVars returns the variables of the profile's expressions.
func (t *toolCall) expressionVars() map[string]any {
	return map[string]any{
		"id": t.id, "caller": t.principal.Caller, "trust": t.principal.Trust, "tool": t.name, "profile": t.profile.Profile.Name,
		"session": t.r.Session, "sandbox": t.r.Sandbox, "workspace": t.r.Workspace, "job": t.r.Job,
	}
}

// validatePlacement checks the fields that say where the call runs.
func (t *toolCall) validatePlacement() error {
	r := t.r
	switch {
	case r.Sandbox != "" && (r.Session != "" || r.Job != ""):
		return usererror.Invalid("sandbox", "and session or job are both set: use one of them")
	case r.Sandbox != "" && (r.Workspace != "" || r.Template != "" || r.ReadOnly):
		return usererror.Invalid("sandbox", "is already leased: workspace, template and read_only are for new leases")
	case r.Job != "" && r.Workspace != "":
		return usererror.Invalid("job", "and workspace are both set: a job has its own workspace")
	case r.Job != "" && !isUUID(r.Job):
		return usererror.Invalid("job", "is not a uuid")
	}
	if r.Session != "" {
		return core.ValidateSession(r.Session)
	}
	return nil
}

func isUUID(s string) bool {
	u, err := uuid.Parse(s)
	return err == nil && u.String() == s
}

// answer builds the call's result in the form that the profile defines for the tool.
func (t *toolCall) answer(ctx context.Context, out any, o tool.Outcome, err error) (v1.ToolResult, error) {
	end := profile.End{
		Ending: o.Ending, ExitCode: o.ExitCode, Signal: o.Signal, DurationMS: core.Milliseconds(o.Duration), TimeoutMS: o.TimeoutMS, Detail: o.Detail,
	}
	if end.Ending == "" {
		end.Ending = endedOK
	}
	if err != nil {
		if t.tool == nil || !t.isResult(err, &end) {
			t.record.Ending = endedFailed
			if ctx.Err() != nil {
				t.record.Ending = string(runtime.Cancelled)
			}
			t.record.Approval, t.record.By, t.record.Sandbox = t.approval, t.by, t.sandbox
			return v1.ToolResult{}, err
		}
		out = nil
	}
	t.recordOutcome(o, end)
	res := v1.ToolResult{
		ID: t.id, Tool: t.name, Ending: end.Ending, Approval: t.approval, SandboxID: t.sandbox,
		DurationMS: core.Milliseconds(time.Since(t.began)), Usage: o.Usage,
	}
	res.Signal, res.Detail = o.Signal, cmp.Or(end.Message, end.Detail)
	if o.Ending == string(runtime.Exited) {
		res.ExitCode = &o.ExitCode
	}
	if t.verdict != nil && t.verdict.Action != policy.Allow {
		v := presentVerdict(*t.verdict)
		res.Verdict = &v
	}
	if c, ok := out.(tool.CommandOutput); ok {
		res.Rest = c.Rest
	}
	if t.shaped == nil { // refused before the input was checked
		t.shaped = t.tool.Bare(t.input, t.expressionVars())
	}
	shown, err := t.shaped.Finish(context.WithoutCancel(ctx), out, end)
	if err != nil {
		return v1.ToolResult{}, err
	}
	res.Output, res.Text = shown.Output, modelText(shown)
	if shown.Error == nil && (end.Refused || end.Ending == endedFailed) {
		shown.Error = &profile.Error{Type: end.Ending, Message: end.Message}
	}
	if shown.Error != nil {
		res.Error = &v1.ToolError{Type: shown.Error.Type, Message: shown.Error.Message, RetryAfterMS: end.RetryAfterMS}
	}
	return res, nil
}

// maxText bounds the text for models when it repeats the output.
const maxText = 256 << 10

func modelText(shown profile.CallerOutcome) string {
	text := shown.Text
	if len(text) <= maxText || text != string(shown.Output) {
		return text
	}
	k := tool.NewKeeper(tool.Cut{Limit: maxText, Marker: "\n... ({omitted} of {total} {unit} left out) ...\n"})
	k.Write([]byte(text)) //nolint:errcheck // it cannot fail
	text, _ = k.Text()
	return text
}

// isResult reports whether err is a refusal or a failure of the tool, which become a result. It
// then fills end. All other errors are returned as errors.
func (t *toolCall) isResult(err error, end *profile.End) bool {
	if no, ok := errors.AsType[*refusal](err); ok {
		v := no.verdict
		end.Ending, end.Refused, end.ExitCode = no.ending, true, -1
		end.Class, end.Rule, end.Never, end.Message, end.Program = v.Class, v.Rule, v.HardDeny, v.Message, v.Program
		end.RetryAfterMS = no.again.Milliseconds()
		return true
	}
	if !t.toolStarted {
		return false // the call did not reach the tool
	}
	class, ok := failureOf(err)
	if ok {
		end.Ending, end.Class, end.Message, end.ExitCode = endedFailed, class, userMessage(err, class), -1
	}
	return ok
}

// failureOf returns the class of a tool's failure. ok is false if err is not a failure of the tool
// itself.
func failureOf(err error) (class string, ok bool) {
	if _, gone := errors.AsType[*scheduler.EndedError](err); gone {
		return "", false
	}
	if g, ok := errors.AsType[*guest.Error](err); ok && errdefs.IsInternal(g) {
		return "", false
	}
	if w, ok := errors.AsType[*tool.WebError](err); ok && (errdefs.IsUnavailable(w) || errdefs.IsInternal(w)) {
		return profile.ClassNetwork, true
	}
	switch {
	case errdefs.IsInvalidArgument(err):
		return profile.ClassInvalid, true
	case errdefs.IsNotFound(err):
		return profile.ClassNotFound, true
	case errdefs.IsPermissionDenied(err):
		return profile.ClassPermission, true
	case errdefs.IsAlreadyExists(err):
		return profile.ClassExists, true
	case errdefs.IsResourceExhausted(err):
		return profile.ClassLimit, true
	case errdefs.IsFailedPrecondition(err):
		return profile.ClassInvalid, true
	}
	return "", false
}

// recordOutcome fills the closing audit record.
func (t *toolCall) recordOutcome(o tool.Outcome, end profile.End) {
	r := &t.record
	r.Ending, r.Sandbox, r.Approval, r.By = end.Ending, t.sandbox, t.approval, t.by
	if t.verdict != nil {
		r.Verdict, r.Rule = string(t.verdict.Action), t.verdict.Rule
	}
	if end.Refused && r.Rule == "" {
		r.Rule = end.Rule
	}
	if end.Ending == endedFailed {
		r.Error = end.Message
	}
	if o.Ending != "" && o.Ending != tool.Started {
		code := o.ExitCode
		r.ExitCode = &code
	}
	r.CPUMS, r.MemoryPeak = o.Usage.CPUUserMS+o.Usage.CPUSystemMS, o.Usage.MemoryPeakBytes
	r.Stdout, r.Stderr = o.Stdout, o.Stderr
}
