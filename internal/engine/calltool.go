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
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Endings of tool calls besides those of commands.
const (
	endedOK         = profile.EndingOK
	endedFailed     = profile.EndingFailed
	policyDenied    = profile.EndingPolicy
	approvalDenied  = profile.EndingApproval
	recordTimeout   = 10 * time.Second
	maxRememberTool = 512 << 10
)

// CallTool carries out one tool call: identify, validate, policy, approval,
// lease, bind, exec, audit, release. A refusal is a result; an error says that
// the request cannot be used, or could not be carried out.
func (e *Engine) CallTool(ctx context.Context, call Call, name string, r v1.ToolCall, w Watch) (v1.ToolResult, error) {
	if e.opts.Governance == nil {
		return v1.ToolResult{}, errUngoverned
	}
	id, err := uuid.NewV7()
	if err != nil {
		return v1.ToolResult{}, err
	}
	// Another of the caller's tokens does not get an answer, or use an approval,
	// that what it may do itself did not lead to.
	request := struct {
		Tool, Whose string
		Level       int
		v1.ToolCall
	}{name, e.profileOf(call), call.Trust, r}
	t := &toolCall{e: e, g: e.opts.Governance, call: call, id: id.String(), name: name, r: r, watch: w, sum: func() (string, error) { return hash(request) }}
	if res, done, err := t.answerLimitedEarly(ctx); done {
		return res, err
	}
	ran := false
	res, err := idempotent(ctx, e, call, opTool, id.String(), request, func(ctx context.Context) (v1.ToolResult, error) {
		ran = true
		return t.execute(ctx)
	}, storedToolResult)
	if err != nil && !ran { // the key was used for another request, or the caller left
		err = e.RefuseCall(ctx, call, name, r.Input, err)
	}
	return res, err
}

// storedToolResult is what is kept of a result under an idempotency key: one that is
// too big loses its output, and says so.
func storedToolResult(r v1.ToolResult) v1.ToolResult {
	if len(r.Output)+len(r.Text) > maxRememberTool {
		r.Output = nil
		r.Text, _ = shorten(r.Text, answerBytes)
		r.Detail = cmp.Or(r.Detail, "the output was too long to be kept for its Idempotency-Key")
	}
	return r
}

// toolCall is one call on its way.
type toolCall struct {
	e     *Engine
	g     *Governance
	call  Call
	id    string
	name  string
	r     v1.ToolCall
	watch Watch
	sum   func() (string, error) // the request's fingerprint

	profile  *profile.Compiled
	tool     *profile.CompiledTool
	input    json.RawMessage // as the caller sent it, or as an approver changed it
	inputErr error           // what is wrong with the input, found before the quota was
	unhide   []func()        // end the hiding of its secrets
	shaped   *profile.Call   // nil until the input was checked
	ready    tool.Prepared

	verdict     *policy.Verdict
	approval    string
	by          string
	unused      string // the approval that has to be marked as used
	reserved    string // what was taken of a budget
	entry       *audit.Entry
	record      audit.Record // what closes the entry
	sandbox     string
	toolStarted bool // the tool itself was asked
	began       time.Time
}

// refusal is a call that is not carried out, for a reason that is the answer.
type refusal struct {
	ending  string
	verdict policy.Verdict
	again   time.Duration // after which it may be allowed; 0: not by waiting
}

// Error is the verdict's message.
func (r *refusal) Error() string { return r.verdict.Message }

// execute opens the record, carries the call out and closes the record. Without a
// record there is no call. What a quota or a rate refuses has no record of its
// own: it is counted.
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
	// It is written while the call is looked at, and waited for before anything
	// is asked, leased or run.
	if t.entry, err = t.g.Audit.Start(ctx, opening); err != nil {
		return res, unrecorded(err)
	}
	defer func() {
		t.record.DurationMS = ms(time.Since(t.began))
		if err != nil {
			t.record.Error = auditText(err)
		}
		finish, cancel := detach(ctx, recordTimeout)
		defer cancel()
		if cerr := t.entry.Close(finish, t.record); cerr != nil {
			t.e.log.Error("end of a call not recorded", "call", t.id, "error", cerr)
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
	return fmt.Errorf("the call cannot be recorded, so it is not carried out: %w: %w", errdefs.ErrUnavailable, err)
}

func (t *toolCall) opening() audit.Record {
	c := t.call
	return audit.Record{
		Kind: audit.KindOpen, Call: t.id, Caller: c.Caller, Token: c.Token, Profile: t.profileName(), Trust: c.Trust, Session: t.r.Session, Via: c.Via,
		Action: truncateForRecord(t.name), Input: t.input, Workspace: truncateForRecord(t.r.Workspace), Uncharged: c.Operator,
	}
}

// truncateForRecord is a name that somebody made up, for a record.
func truncateForRecord(s string) string {
	const most = 256
	if len(s) > most {
		return s[:most]
	}
	return s
}

// noOutcome is that of calls that did not come to the tool.
var noOutcome tool.Outcome

// executeRecorded is the order of a call whose tool is known.
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

// find looks the tool up.
func (t *toolCall) find() (err error) {
	if t.r.Profile != "" && !t.call.Operator && t.r.Profile != t.call.Profile {
		return &InvalidError{Field: "profile", Message: "is not yours to choose: leave it out", Class: errdefs.ErrPermissionDenied}
	}
	if t.profile, err = t.g.profile(t.profileName()); err != nil {
		return &InvalidError{Field: "profile", Message: "cannot be used: " + err.Error(), Class: err}
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
	return t.e.profileOf(t.call)
}

// admit is everything that is decided without anybody's consent: whether the
// tool is there for this caller, whether the input can be used, and what the
// policy says of the command. It returns what has to be asked.
func (t *toolCall) admit(ctx context.Context) ([]approval.Reason, error) {
	if !t.tool.Enabled() {
		return nil, t.refuse(policy.Verdict{Action: policy.Deny, Class: profile.ClassDisabled, Rule: "disabled:" + t.name, Message: fmt.Sprintf("Tool %s is disabled", t.name)})
	}
	var questions []approval.Reason
	if need := t.tool.Trust(); t.call.Trust < need {
		v := policy.Verdict{
			Action: policy.Deny, Class: profile.ClassTrust, Rule: fmt.Sprintf("trust:%d", need),
			Message: fmt.Sprintf("Tool %s needs trust level %d, and this caller has %d", t.name, need, t.call.Trust),
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

// prepare checks the input and asks the policy. It is done again for an input
// that an approver changed: a denied command is denied whoever wants it.
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

// maxToolInput bounds an input: a file of the greatest size as base64 fits.
const maxToolInput = 16 << 20

// decide asks the policy about the call's command; nil: there is none.
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

// expressionVars are what expressions know of a call.
func (t *toolCall) expressionVars() map[string]any {
	return map[string]any{
		"id": t.id, "caller": t.call.Caller, "trust": t.call.Trust, "tool": t.name, "profile": t.profile.Profile.Name,
		"session": t.r.Session, "sandbox": t.r.Sandbox, "workspace": t.r.Workspace, "job": t.r.Job,
	}
}

// validatePlacement refuses a request for a place to run that cannot be.
func (t *toolCall) validatePlacement() error {
	r := t.r
	switch {
	case r.Sandbox != "" && (r.Session != "" || r.Job != ""):
		return invalid("sandbox", "and session or job are both set: use one of them")
	case r.Sandbox != "" && (r.Workspace != "" || r.Template != "" || r.ReadOnly):
		return invalid("sandbox", "is leased already: workspace, template and read_only are for one that is leased now")
	case r.Job != "" && r.Workspace != "":
		return invalid("job", "and workspace are both set: a job has a workspace of its own")
	case r.Job != "" && !isUUID(r.Job):
		return invalid("job", "is not a uuid")
	}
	if r.Session != "" {
		return validateSession(r.Session)
	}
	return nil
}

func isUUID(s string) bool {
	u, err := uuid.Parse(s)
	return err == nil && u.String() == s
}

// answer makes the result of a call in the shape of its tool.
func (t *toolCall) answer(ctx context.Context, out any, o tool.Outcome, err error) (v1.ToolResult, error) {
	end := profile.End{
		Ending: o.Ending, ExitCode: o.ExitCode, Signal: o.Signal, DurationMS: ms(o.Duration), TimeoutMS: o.TimeoutMS, Detail: o.Detail,
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
		DurationMS: ms(time.Since(t.began)), Usage: o.Usage,
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
	if t.shaped == nil { // refused before anybody looked at the input
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

// maxText bounds the form for models where that is nothing but the output: a
// file of many megabytes is there already, and no model reads it twice.
const maxText = 256 << 10

func modelText(shown profile.Shown) string {
	text := shown.Text
	if len(text) <= maxText || text != string(shown.Output) {
		return text
	}
	k := tool.NewKeeper(tool.Cut{Limit: maxText, Marker: "\n... ({omitted} of {total} {unit} left out) ...\n"})
	k.Write([]byte(text)) //nolint:errcheck // it cannot fail
	text, _ = k.Text()
	return text
}

// isResult tells refusals and failures of the tool, which are answers, from
// what went wrong around it.
func (t *toolCall) isResult(err error, end *profile.End) bool {
	if no, ok := errors.AsType[*refusal](err); ok {
		v := no.verdict
		end.Ending, end.Refused, end.ExitCode = no.ending, true, -1
		end.Class, end.Rule, end.Never, end.Message, end.Program = v.Class, v.Rule, v.Never, v.Message, v.Program
		end.RetryAfterMS = no.again.Milliseconds()
		return true
	}
	if !t.toolStarted {
		return false // it never came to the tool
	}
	class, ok := failureOf(err)
	if ok {
		end.Ending, end.Class, end.Message, end.ExitCode = endedFailed, class, userMessage(err, class), -1
	}
	return ok
}

// failureOf names what a tool failed with, for the caller; not ok: it is no
// failure of the tool.
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

// recordOutcome writes into the closing record how the call went.
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
