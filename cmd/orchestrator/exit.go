package main

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
	exitOK           = 0
	exitChecksFailed = 1  // doctor or audit verify found something, or a tool failed
	exitUsage        = 64 // the command line, the configuration or a value in the request
	exitNotFound     = 66
	exitUnavailable  = 69 // no server, or a state directory that is held
	exitInternal     = 70
	exitExists       = 73
	exitTryAgain     = 75 // no room now, or it took too long
	exitDenied       = 77
	exitPrecondition = 78 // this host, or the state of things, does not allow it

	// A policy's verdicts and refused calls: nothing ran.
	exitPolicyAsk      = 116
	exitPolicyDenied   = 117
	exitApprovalDenied = 118

	exitOutputLimit = 120
	exitPids        = 121
	exitOOM         = 122
	exitDisk        = 123
	exitTimeout     = 124
	exitLost        = 125
	exitSignal      = 128 // and the signal's number
	exitCancelled   = 130
)

// refusal is an error of a class that its text does not repeat.
type refusal struct {
	error
	class error
}

// Unwrap gives what went wrong and the class.
func (e *refusal) Unwrap() []error { return []error{e.error, e.class} }

func refuse(class error, format string, args ...any) error {
	return &refusal{fmt.Errorf(format, args...), class}
}

// endedError is a command that did not end with 0. It is no failure of ours: what
// there is to say about it has been said by its streams.
type endedError struct{ result v1.ExecResult }

// Error is for endings that a caller would not see from the streams.
func (e *endedError) Error() string {
	r := e.result
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

// result is nil for a command that exited with 0.
func result(r v1.ExecResult) error {
	if r.Ending == string(runtime.Exited) && r.ExitCode == 0 {
		return nil
	}
	return &endedError{r}
}

// errChecks is what doctor ends with when a check failed; the table has told.
var errChecks = errors.New("a check failed")

// finish says what went wrong, in one line, and returns the exit code.
func (a *app) finish(err error) int {
	code := exitCode(err)
	e, command := errors.AsType[*endedError](err)
	quiet := err == nil || errors.Is(err, errChecks) || command && e.result.Ending == string(runtime.Exited) || said(err)
	if !quiet {
		fmt.Fprintf(a.stderr, "orchestrator: %s\n", oneLine(describe(err))) //nolint:errcheck // there is nowhere else to say it
	}
	return code
}

// describe is an error's text, with the way out where a server is missing.
func describe(err error) string {
	e, ok := errors.AsType[*client.NoServerError](err)
	switch {
	case !ok:
		return withoutClass(err.Error())
	case errors.Is(e.Err, os.ErrPermission):
		return fmt.Sprintf("no permission for the server's socket %s: use the account that the server runs as", e.Address)
	}
	return fmt.Sprintf("no server answers on %s: start one with `orchestrator serve`", e.Address)
}

// withoutClass drops the class that wrapped errors end with: it is for
// programs, and the exit code tells it.
func withoutClass(text string) string {
	for _, class := range []error{
		errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition,
		errdefs.ErrUnavailable, errdefs.ErrResourceExhausted, errdefs.ErrNotImplemented, errdefs.ErrUnauthenticated,
	} {
		text = strings.TrimSuffix(text, ": "+class.Error())
	}
	return text
}

// exitCode is the only place that maps errors to exit codes.
func exitCode(err error) int {
	if err == nil {
		return exitOK
	}
	if e, ok := errors.AsType[*endedError](err); ok {
		return endingCode(e.result)
	}
	if e, ok := errors.AsType[*refusedCall](err); ok {
		return refusedCode(e.result)
	}
	if e, ok := errors.AsType[*verdictError](err); ok {
		return e.code()
	}
	if e, ok := errors.AsType[*interrupted](err); ok {
		return exitSignal + int(e.signal)
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	for _, c := range []struct {
		is   func(error) bool
		code int
	}{
		{func(err error) bool { return errors.Is(err, errChecks) }, exitChecksFailed},
		{errdefs.IsInvalidArgument, exitUsage},
		{errdefs.IsOutOfRange, exitUsage},
		{errdefs.IsNotFound, exitNotFound},
		{errdefs.IsAlreadyExists, exitExists},
		{errdefs.IsPermissionDenied, exitDenied},
		{errdefs.IsUnauthorized, exitDenied},
		{func(err error) bool { return errors.Is(err, os.ErrPermission) }, exitDenied},
		{errdefs.IsFailedPrecondition, exitPrecondition},
		{errdefs.IsNotImplemented, exitPrecondition},
		{errdefs.IsResourceExhausted, exitTryAgain},
		{errdefs.IsUnavailable, exitUnavailable},
		{errdefs.IsDeadlineExceeded, exitTryAgain},
		{errdefs.IsCanceled, exitCancelled},
		{func(err error) bool { return errors.Is(err, context.Canceled) }, exitCancelled},
	} {
		if c.is(err) {
			return c.code
		}
	}
	return exitInternal
}

// endingCode is the code of a command's ending.
func endingCode(r v1.ExecResult) int {
	switch runtime.Ending(r.Ending) {
	case runtime.Exited:
		return r.ExitCode & 0xff
	case runtime.Signalled:
		return exitSignal + r.Signal&0x7f
	case runtime.Timeout:
		return exitTimeout
	case runtime.Cancelled:
		return exitCancelled
	case runtime.OOM:
		return exitOOM
	case runtime.Pids:
		return exitPids
	case runtime.Disk:
		return exitDisk
	case runtime.OutputLimit:
		return exitOutputLimit
	case runtime.PolicyDenied:
		return exitPolicyDenied
	case runtime.ApprovalDenied:
		return exitApprovalDenied
	}
	return exitLost
}
