package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestEndingExitCodes(t *testing.T) {
	want := map[runtime.Ending]int{
		runtime.Exited: 5, runtime.Signalled: 143, runtime.Timeout: 124, runtime.Cancelled: 130,
		runtime.OOM: 122, runtime.Pids: 121, runtime.Disk: 123, runtime.OutputLimit: 120,
		runtime.PolicyDenied: 117, runtime.ApprovalDenied: 118, runtime.SandboxLost: 125,
	}
	for _, e := range runtime.Endings() {
		r := v1.ExecResult{Ending: string(e), ExitCode: -1}
		switch e {
		case runtime.Exited:
			r.ExitCode = 5
		case runtime.Signalled:
			r.Signal = 15
		default: // the ending alone decides
		}
		if got := ExitCode(fmt.Errorf("run: %w", ResultError(r))); got != want[e] {
			t.Errorf("%s exits with %d, want %d", e, got, want[e])
		}
	}
	if err := ResultError(v1.ExecResult{Ending: "exited"}); err != nil {
		t.Errorf("exit code 0 is an error: %v", err)
	}
	if got := ExitCode(ResultError(v1.ExecResult{Ending: "of a newer server"})); got != ExitLost {
		t.Errorf("an unknown ending exits with %d", got)
	}
}

func TestErrorExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{nil, 0},
		{&UsageError{}, 64},
		{errdefs.ErrInvalidArgument, 64},
		{errdefs.ErrNotFound, 66},
		{client.ErrNoServer, 69},
		{client.ErrLost, 69},
		{errors.New("what is this"), 70},
		{errdefs.ErrAlreadyExists, 73},
		{errdefs.ErrResourceExhausted, 75},
		{context.DeadlineExceeded, 75},
		{errdefs.ErrPermissionDenied, 77},
		{errdefs.ErrUnauthenticated, 77},
		{errdefs.ErrFailedPrecondition, 78},
		{ErrChecks, 1},
		{&Interrupted{2}, 130},
		{&Interrupted{15}, 143},
		{Refuse(errdefs.ErrNotFound, "no %s", "x"), 66},
		{JobError(v1.Job{Ending: "succeeded"}), 0},
		{JobError(v1.Job{Ending: "failed"}), 1},
		{JobError(v1.Job{Ending: "deadline"}), 124},
		{JobError(v1.Job{Ending: "cancelled"}), 130},
		{JobError(v1.Job{Ending: "unknown"}), 125},
	} {
		if got := ExitCode(c.err); got != c.want {
			t.Errorf("%v exits with %d, want %d", c.err, got, c.want)
		}
	}
}

func TestExitCodesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/exit-codes.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, code := range []int{
		ExitOK, ExitChecksFailed, ExitUsage, ExitNotFound, ExitUnavailable, ExitInternal, ExitExists, ExitTryAgain, ExitDenied,
		ExitPrecondition, ExitPolicyAsk, ExitPolicyDenied, ExitApprovalDenied, ExitOutputLimit,
		ExitPids, ExitOOM, ExitDisk, ExitTimeout, ExitLost, ExitCancelled,
	} {
		if !strings.Contains(string(text), fmt.Sprintf("| %d |", code)) {
			t.Errorf("%d is not in docs/exit-codes.md", code)
		}
	}
	for _, e := range runtime.Endings() {
		if !strings.Contains(string(text), "`"+string(e)+"`") {
			t.Errorf("%s is not in docs/exit-codes.md", e)
		}
	}
}

func TestFinishPrintsOneLine(t *testing.T) {
	err := errors.Join(fmt.Errorf("a: %w", errdefs.ErrUnavailable), fmt.Errorf("b\x1b: %w", errdefs.ErrNotFound))
	var b strings.Builder
	a := &App{Stderr: &b}
	if code := a.Finish(err); code != ExitNotFound || b.String() != "orchestrator: a: unavailable; b\\x1b\n" {
		t.Errorf("code %d, %q", code, b.String())
	}
	b.Reset()
	if a.Finish(ResultError(v1.ExecResult{Ending: "exited", ExitCode: 1})); b.Len() > 0 {
		t.Errorf("a failing command is told about: %q", b.String())
	}
	if a.Finish(ResultError(v1.ExecResult{Ending: "oom", Signal: 9})); b.String() != "orchestrator: the command ended: oom\n" {
		t.Errorf("an ending is told as %q", b.String())
	}
}
