package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Endings of tool calls that commands do not have.
const (
	endingOK      = "ok"
	endingStarted = "started"
	endingFailed  = "failed"
	endingInvalid = "invalid"
)

// failedCall is a tool call that did not end with "ok" or exit code 0.
type failedCall struct{ result v1.ToolResult }

// Error implements error. It prefers the tool's own message.
func (e *failedCall) Error() string {
	r := e.result
	text := "the call ended: " + strings.ReplaceAll(r.Ending, "_", " ")
	switch {
	case r.Error != nil && r.Error.Message != "":
		text = r.Error.Message
	case r.Detail != "":
		text += ": " + r.Detail
	case r.Verdict != nil && r.Verdict.Message != "":
		text += ": " + r.Verdict.Message
	}
	if r.Error != nil && r.Error.RetryAfterMS > 0 && !strings.Contains(text, "again in") {
		text += fmt.Sprintf(" (try again in %s)", time.Duration(r.Error.RetryAfterMS)*time.Millisecond)
	}
	return text
}

// ToolError returns nil for a call that succeeded.
func ToolError(r v1.ToolResult) error {
	if toolExitCode(r) == ExitOK {
		return nil
	}
	return &failedCall{r}
}

// toolExitCode returns the exit code for a tool call.
func toolExitCode(r v1.ToolResult) int {
	switch {
	case r.Error != nil && r.Error.RetryAfterMS > 0,
		r.Verdict != nil && (r.Verdict.Class == "rate" || r.Verdict.Class == "quota"):
		return ExitTryAgain
	case r.Ending == endingOK, r.Ending == endingStarted:
		return ExitOK
	case r.Ending == endingInvalid:
		return ExitUsage
	case r.Ending == endingFailed:
		return ExitChecksFailed
	case r.Ending == string(runtime.Exited) && r.ExitCode == nil:
		return ExitOK
	}
	x := v1.ExecResult{Ending: r.Ending, Signal: r.Signal}
	if r.ExitCode != nil {
		x.ExitCode = *r.ExitCode
	}
	return endingExitCode(x)
}

// VerdictError is a policy's verdict other than "allow". It has been printed.
type VerdictError struct{ Verdict v1.Verdict }

// Error implements error. It names the verdict and the rule.
func (e *VerdictError) Error() string { return e.Verdict.Verdict + ": " + e.Verdict.Rule }

func (e *VerdictError) code() int {
	if e.Verdict.Verdict == "ask" {
		return ExitPolicyAsk
	}
	return ExitPolicyDenied
}

// wasPrinted reports whether err has been printed already.
func wasPrinted(err error) bool {
	if _, ok := errors.AsType[*VerdictError](err); ok {
		return true
	}
	e, ok := errors.AsType[*failedCall](err)
	return ok && e.result.Ending == string(runtime.Exited)
}
