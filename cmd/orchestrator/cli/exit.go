package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// What the program exits with; docs/exit-codes.md explains them. Codes from 64
// to 78 are those of sysexits.h: orchestrator did not do what was asked. Codes
// from 120 to 125 say how a command of run or exec ended that did not end by
// itself. 128 and more is a signal. Everything else is the command's own.
const (
	ExitOK           = 0
	ExitChecksFailed = 1  // doctor or audit verify found something, or a tool failed
	ExitUsage        = 64 // the command line, the configuration or a value in the request
	ExitNotFound     = 66
	ExitUnavailable  = 69 // no server, or a state directory that is held
	ExitInternal     = 70
	ExitExists       = 73
	ExitTryAgain     = 75 // no room now, or it took too long
	ExitDenied       = 77
	ExitPrecondition = 78 // this host, or the state of things, does not allow it

	// A policy's verdicts and refused calls: nothing ran.
	ExitPolicyAsk      = 116
	ExitPolicyDenied   = 117
	ExitApprovalDenied = 118

	ExitOutputLimit = 120
	ExitPids        = 121
	ExitOOM         = 122
	ExitDisk        = 123
	ExitTimeout     = 124
	ExitLost        = 125
	exitSignal      = 128 // and the signal's number
	ExitCancelled   = 130
)

// refusal is an error of a class that its text does not repeat.
type refusal struct {
	error
	class error
}

// Unwrap gives what went wrong and the class.
func (e *refusal) Unwrap() []error { return []error{e.error, e.class} }

// Refuse returns an error of the given errdefs class. Its text does not repeat the class; format
// may wrap another error.
func Refuse(class error, format string, args ...any) error {
	return &refusal{fmt.Errorf(format, args...), class}
}

// EndedError is a command that did not end with 0. It is no failure of ours: what
// there is to say about it has been said by its streams.
type EndedError struct{ Result v1.ExecResult }

// Error is for endings that a caller would not see from the streams.
func (e *EndedError) Error() string {
	r := e.Result
	if r.Ending == string(runtime.Exited) {
		return fmt.Sprintf("the command exited with %d", r.ExitCode)
	}
	text := "the command ended: " + strings.ReplaceAll(r.Ending, "_", " ")
	if r.Ending == string(runtime.Signalled) {
		text += fmt.Sprintf(" %d", r.Signal)
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}

// ResultError is nil for a command that exited with 0.
func ResultError(r v1.ExecResult) error {
	if r.Ending == string(runtime.Exited) && r.ExitCode == 0 {
		return nil
	}
	return &EndedError{r}
}

// ErrChecks is what doctor ends with when a check failed; the table has told.
var ErrChecks = errors.New("a check failed")

// Finish says what went wrong, in one line, and returns the exit code.
func (a *App) Finish(err error) int {
	code := ExitCode(err)
	e, command := errors.AsType[*EndedError](err)
	quiet := err == nil || errors.Is(err, ErrChecks) || command && e.Result.Ending == string(runtime.Exited) || wasPrinted(err)
	if !quiet {
		fmt.Fprintf(a.Stderr, "orchestrator: %s\n", OneLine(Describe(err))) //nolint:errcheck // there is nowhere else to say it
	}
	return code
}

// Describe is an error's text, with the way out where a server is missing.
func Describe(err error) string {
	e, ok := errors.AsType[*client.NoServerError](err)
	switch {
	case !ok:
		return WithoutClass(err.Error())
	case errors.Is(e.Err, os.ErrPermission):
		return fmt.Sprintf("no permission for the server's socket %s: use the account that the server runs as", e.Address)
	}
	return fmt.Sprintf("no server answers on %s: start one with `orchestrator serve`", e.Address)
}

// WithoutClass drops the class that wrapped errors end with: it is for
// programs, and the exit code tells it.
func WithoutClass(text string) string {
	for _, class := range []error{
		errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition,
		errdefs.ErrUnavailable, errdefs.ErrResourceExhausted, errdefs.ErrNotImplemented, errdefs.ErrUnauthenticated,
	} {
		text = strings.TrimSuffix(text, ": "+class.Error())
	}
	return text
}

// ExitCode is the only place that maps errors to exit codes.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*EndedError](err); ok {
		return endingExitCode(e.Result)
	}
	if e, ok := errors.AsType[*failedCall](err); ok {
		return toolExitCode(e.result)
	}
	if e, ok := errors.AsType[*VerdictError](err); ok {
		return e.code()
	}
	if e, ok := errors.AsType[*Interrupted](err); ok {
		return exitSignal + int(e.Signal)
	}
	if _, ok := errors.AsType[*UsageError](err); ok {
		return ExitUsage
	}
	for _, c := range []struct {
		is   func(error) bool
		code int
	}{
		{func(err error) bool { return errors.Is(err, ErrChecks) }, ExitChecksFailed},
		{errdefs.IsInvalidArgument, ExitUsage},
		{errdefs.IsOutOfRange, ExitUsage},
		{errdefs.IsNotFound, ExitNotFound},
		{errdefs.IsAlreadyExists, ExitExists},
		{errdefs.IsPermissionDenied, ExitDenied},
		{errdefs.IsUnauthorized, ExitDenied},
		{func(err error) bool { return errors.Is(err, os.ErrPermission) }, ExitDenied},
		{errdefs.IsFailedPrecondition, ExitPrecondition},
		{errdefs.IsNotImplemented, ExitPrecondition},
		{errdefs.IsResourceExhausted, ExitTryAgain},
		{errdefs.IsUnavailable, ExitUnavailable},
		{errdefs.IsDeadlineExceeded, ExitTryAgain},
		{errdefs.IsCanceled, ExitCancelled},
		{func(err error) bool { return errors.Is(err, context.Canceled) }, ExitCancelled},
	} {
		if c.is(err) {
			return c.code
		}
	}
	return ExitInternal
}

// endingExitCode is the code of a command's ending.
func endingExitCode(r v1.ExecResult) int {
	switch runtime.Ending(r.Ending) {
	case runtime.Exited:
		return r.ExitCode & 0xff
	case runtime.Signalled:
		return exitSignal + r.Signal&0x7f
	case runtime.Timeout:
		return ExitTimeout
	case runtime.Cancelled:
		return ExitCancelled
	case runtime.OOM:
		return ExitOOM
	case runtime.Pids:
		return ExitPids
	case runtime.Disk:
		return ExitDisk
	case runtime.OutputLimit:
		return ExitOutputLimit
	case runtime.PolicyDenied:
		return ExitPolicyDenied
	case runtime.ApprovalDenied:
		return ExitApprovalDenied
	}
	return ExitLost
}
