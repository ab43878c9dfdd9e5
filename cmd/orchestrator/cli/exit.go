package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Exit codes of the program; docs/exit-codes.md explains them. Codes from 64 to 78 have the meaning
// of sysexits.h: orchestrator did not do what was asked. Codes from 120 to 125 are endings of a
// command of run or exec that did not exit itself. Codes from 128 on are signals. All others are
// the command's own.
const (
	ExitOK           = 0
	ExitChecksFailed = 1  // doctor or audit verify found a problem, or a tool or a job failed
	ExitUsage        = 64 // invalid command line, configuration or request
	ExitNotFound     = 66
	ExitUnavailable  = 69 // no server, or the state directory is in use
	ExitInternal     = 70
	ExitExists       = 73
	ExitTryAgain     = 75 // no capacity now, or a timeout
	ExitDenied       = 77
	ExitPrecondition = 78 // this host or the current state does not allow it

	// Verdicts of a policy and refused calls: nothing ran.
	ExitPolicyAsk      = 116
	ExitPolicyDenied   = 117
	ExitApprovalDenied = 118

	ExitOutputLimit = 120
	ExitPids        = 121
	ExitOOM         = 122
	ExitDisk        = 123
	ExitTimeout     = 124
	ExitLost        = 125
	exitSignal      = 128 // plus the number of the signal
	ExitCancelled   = 130
)

// refusal is an error of a class that its text does not repeat.
type refusal struct {
	error
	class error
}

// Unwrap returns the error and its class.
func (e *refusal) Unwrap() []error { return []error{e.error, e.class} }

// Refuse returns an error of the given errdefs class. Its text does not repeat the class; format
// may wrap another error.
func Refuse(class error, format string, args ...any) error {
	return &refusal{fmt.Errorf(format, args...), class}
}

// EndedError is the ending of a command that did not exit with 0. orchestrator itself did not fail.
type EndedError struct{ Result v1.ExecResult }

// Error implements error. For an exit, nothing is printed: the command's streams show what
// happened.
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

// ResultError returns nil for a command that exited with 0, and an EndedError otherwise.
func ResultError(r v1.ExecResult) error {
	if r.Ending == string(runtime.Exited) && r.ExitCode == 0 {
		return nil
	}
	return &EndedError{r}
}

// jobError is the ending of a job whose commands did not all succeed.
type jobError struct{ job v1.Job }

// Error implements error.
func (e *jobError) Error() string {
	c := e.job.Commands
	text := fmt.Sprintf("job %s: %s: %d of %d commands succeeded", e.job.ID, e.job.Ending, c.Succeeded, c.Total)
	if e.job.Detail != "" {
		text += ": " + e.job.Detail
	}
	return text
}

func (e *jobError) code() int {
	switch e.job.Ending {
	case "failed":
		return ExitChecksFailed
	case "deadline":
		return ExitTimeout
	case "cancelled":
		return ExitCancelled
	}
	return ExitLost // unknown, or an ending of a newer server
}

// JobError returns nil for an ended job whose commands all succeeded, and an error with the exit
// code of its ending otherwise.
func JobError(j v1.Job) error {
	if j.Ending == "succeeded" {
		return nil
	}
	return &jobError{j}
}

// ErrChecks reports that a check of doctor failed. The table has been printed.
var ErrChecks = errors.New("a check failed")

// Finish prints err on one line and returns the exit code.
func (a *App) Finish(err error) int {
	code := ExitCode(err)
	e, command := errors.AsType[*EndedError](err)
	quiet := err == nil || errors.Is(err, ErrChecks) || command && e.Result.Ending == string(runtime.Exited) ||
		wasPrinted(err)
	if !quiet {
		fmt.Fprintf(
			a.Stderr,
			"orchestrator: %s\n",
			OneLine(Describe(err)),
		)
	}
	return code
}

// Describe returns an error's text. If no server answers, it says how to start one. If the server's
// socket is closed to this account, it says how to get access.
func Describe(err error) string { return describe(err, onLinux) }

// describe is Describe. here says that a server can run on this host.
func describe(err error, here bool) string {
	if e, ok := errors.AsType[*client.AccessError](err); ok {
		fact, remedy := ExplainAccess(e)
		return fact + ": " + remedy
	}
	if t, ok := errors.AsType[*client.TLSError](err); ok {
		return describeTLS(t)
	}
	e, ok := errors.AsType[*client.NoServerError](err)
	if !ok {
		return WithoutClass(err.Error())
	}
	if here {
		return fmt.Sprintf("no server answers on %s: start one with `orchestrator serve`", e.Address)
	}
	cause := e.Err
	if dial, ok := errors.AsType[*net.OpError](cause); ok {
		cause = dial.Err // the rest repeats the address
	}
	return fmt.Sprintf(
		"no server answers on %s: %v: start one with `orchestrator serve` on a Linux host and name it with --address",
		e.Address,
		cause,
	)
}

// describeTLS returns the text of a failed handshake, with the way out.
func describeTLS(e *client.TLSError) string {
	switch {
	case e.Remote:
		return e.Error() + ": give --cert-file and --key-file"
	case !errors.Is(e.Err, http.ErrSchemeMismatch):
		return e.Error() + ": name the authority of its certificate with --ca-file"
	case strings.HasPrefix(e.Address, "https://"):
		return fmt.Sprintf("the server at %s does not use TLS: use http:// in --address", e.Address)
	}
	return fmt.Sprintf("the server at %s uses TLS: use https:// in --address", e.Address)
}

// WithoutClass removes the class that the text of a wrapped error ends with. The exit code shows
// it.
func WithoutClass(text string) string {
	for _, class := range []error{
		errdefs.ErrInvalidArgument, errdefs.ErrNotFound, errdefs.ErrAlreadyExists, errdefs.ErrFailedPrecondition,
		errdefs.ErrUnavailable, errdefs.ErrResourceExhausted, errdefs.ErrNotImplemented, errdefs.ErrUnauthenticated,
	} {
		text = strings.TrimSuffix(text, ": "+class.Error())
	}
	return text
}

// ExitCode returns the exit code for an error. All errors are mapped here.
func ExitCode(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*EndedError](err); ok {
		return endingExitCode(e.Result)
	}
	if e, ok := errors.AsType[*jobError](err); ok {
		return e.code()
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

// endingExitCode returns the exit code for the ending of a command.
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
	case runtime.SandboxLost:
		return ExitLost
	}
	return ExitLost // an ending of a newer server
}
