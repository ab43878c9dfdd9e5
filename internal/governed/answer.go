package governed

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed/present"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

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

// answer builds the call's result in the form that the profile defines for the tool.
func (t *transaction) answer(ctx context.Context, out any, o tool.Outcome, err error) (v1.ToolResult, error) {
	end := profile.End{
		Ending: o.Ending, ExitCode: o.ExitCode, Signal: o.Signal, Detail: o.Detail,
		DurationMS: core.Milliseconds(o.Duration), TimeoutMS: o.TimeoutMS,
	}
	if end.Ending == "" {
		end.Ending = endedOK
	}
	if err != nil {
		if t.tool == nil || !t.isResult(err, &end) {
			t.record.Ending = EndedFailed
			if ctx.Err() != nil {
				t.record.Ending = string(runtime.Cancelled)
			}
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
		v := present.Verdict(*t.verdict)
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
	if shown.Error == nil && (end.Refused || end.Ending == EndedFailed) {
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
func (t *transaction) isResult(err error, end *profile.End) bool {
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
		end.Ending, end.Class, end.Message, end.ExitCode = EndedFailed, class, userMessage(err, class), -1
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
	if w, ok := errors.AsType[*web.Fault](err); ok && (errdefs.IsUnavailable(w) || errdefs.IsInternal(w)) {
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
func (t *transaction) recordOutcome(o tool.Outcome, end profile.End) {
	r := &t.record
	r.Ending = end.Ending
	if t.verdict != nil {
		r.Verdict, r.Rule = string(t.verdict.Action), t.verdict.Rule
	}
	if end.Refused && r.Rule == "" {
		r.Rule = end.Rule
	}
	if end.Ending == EndedFailed {
		r.Error = end.Message
	}
	if o.Ending != "" && o.Ending != tool.Started {
		code := o.ExitCode
		r.ExitCode = &code
	}
	r.CPUMS, r.MemoryPeak = o.Usage.CPUUserMS+o.Usage.CPUSystemMS, o.Usage.MemoryPeakBytes
	r.Stdout, r.Stderr = o.Stdout, o.Stderr
}

// userMessage returns the caller-safe text of a tool's failure, or only its class.
func userMessage(err error, class string) string {
	if got := core.ForCallers(err); got != nil {
		return got.Error()
	}
	return class
}

// InputError reports an invalid tool input by the profile's names.
type InputError = profile.InputError

// inputErrorForCaller converts an invalid tool input to a caller-safe error.
func inputErrorForCaller(err error) error {
	e, ok := errors.AsType[*InputError](err)
	switch {
	case !ok:
		return err
	case e.Type != "": // the profile defines the whole message
		return &usererror.Error{Message: e.Message, Class: err}
	}
	return &usererror.InvalidError{Field: cmp.Or(e.Field, "input"), Message: e.Message, Class: err}
}
