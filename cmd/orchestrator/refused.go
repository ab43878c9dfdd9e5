package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// The endings of tool calls that are none of a command's.
const (
	endingOK      = "ok"
	endingStarted = "started"
	endingFailed  = "failed"
	endingInvalid = "invalid"
)

// refusedCall is a tool call that did not end with "ok" or exit code 0.
type refusedCall struct{ result v1.ToolResult }

// Error says why, in the tool's own words where it has some.
func (e *refusedCall) Error() string {
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

// toolEnding is nil for a call that went well.
func toolEnding(r v1.ToolResult) error {
	if refusedCode(r) == exitOK {
		return nil
	}
	return &refusedCall{r}
}

// refusedCode is the exit code of a tool call.
func refusedCode(r v1.ToolResult) int {
	switch {
	case r.Error != nil && r.Error.RetryAfterMS > 0, r.Verdict != nil && (r.Verdict.Class == "rate" || r.Verdict.Class == "quota"):
		return exitTryAgain
	case r.Ending == endingOK, r.Ending == endingStarted:
		return exitOK
	case r.Ending == endingInvalid:
		return exitUsage
	case r.Ending == endingFailed:
		return exitChecksFailed
	case r.Ending == string(runtime.Exited) && r.ExitCode == nil:
		return exitOK
	}
	x := v1.ExecResult{Ending: r.Ending, Signal: r.Signal}
	if r.ExitCode != nil {
		x.ExitCode = *r.ExitCode
	}
	return endingCode(x)
}

// verdictError is what a policy said that is not "allow". It has been printed.
type verdictError struct{ verdict v1.Verdict }

// Error names the verdict and what decided.
func (e *verdictError) Error() string { return e.verdict.Verdict + ": " + e.verdict.Rule }

func (e *verdictError) code() int {
	if e.verdict.Verdict == "ask" {
		return exitPolicyAsk
	}
	return exitPolicyDenied
}

// said tells errors that were printed already.
func said(err error) bool {
	if _, ok := errors.AsType[*verdictError](err); ok {
		return true
	}
	e, ok := errors.AsType[*refusedCall](err)
	return ok && e.result.Ending == string(runtime.Exited)
}
