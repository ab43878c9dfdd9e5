package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
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
		t.Errorf("ResultError of exit code 0 = %v, want nil", err)
	}
	if got := ExitCode(ResultError(v1.ExecResult{Ending: "of a newer server"})); got != ExitLost {
		t.Errorf("exit code of an unknown ending = %d, want %d", got, ExitLost)
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
			t.Errorf("docs/exit-codes.md has no row for %d, want one", code)
		}
	}
	for _, e := range runtime.Endings() {
		if !strings.Contains(string(text), "`"+string(e)+"`") {
			t.Errorf("docs/exit-codes.md has no ending %s, want it", e)
		}
	}
}

func TestDescribeNoServer(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	err := error(&client.NoServerError{Address: "h:1", Err: &url.Error{Op: "Get", URL: "http://h:1/", Err: refused}})
	for here, want := range map[bool]string{
		true: "no server answers on h:1: start one with `orchestrator serve`",
		false: "no server answers on h:1: connect: connection refused: " +
			"start one with `orchestrator serve` on a Linux host and name it with --address",
	} {
		if got := describe(err, here); got != want {
			t.Errorf("describe(NoServerError, %t) = %q, want %q", here, got, want)
		}
	}
}

func TestDescribeClosedSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed := &client.AccessError{Address: "unix:" + path, Err: syscall.EACCES}
	if got := ExitCode(closed); got != ExitDenied || errors.Is(closed, client.ErrNoServer) {
		t.Errorf("ExitCode(AccessError) = %d, is ErrNoServer %t; want %d, false", got, errors.Is(closed, client.ErrNoServer), ExitDenied)
	}
	for mode, want := range map[os.FileMode]string{
		0o600: ", mode 0600): have its operator set socket_group to a group of yours, " +
			"or use its TCP address with --address and --token-file",
		0o660: ", mode 0660): join the group ",
	} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if got := Describe(fmt.Errorf("run: %w", closed)); !strings.Contains(got, want) {
			t.Errorf("Describe(AccessError), mode %v = %q, want %q", mode, got, want)
		}
	}
	closed.Address += "/nope"
	if got, want := Describe(closed), "its directory is closed to this account"; !strings.Contains(got, want) {
		t.Errorf("Describe(AccessError) of a closed directory = %q, want %q", got, want)
	}
}

func TestFinishPrintsOneLine(t *testing.T) {
	err := errors.Join(fmt.Errorf("a: %w", errdefs.ErrUnavailable), fmt.Errorf("b\x1b: %w", errdefs.ErrNotFound))
	var b strings.Builder
	a := &App{Stderr: &b}
	want := "orchestrator: a: unavailable; b\\x1b\n"
	if code := a.Finish(err); code != ExitNotFound || b.String() != want {
		t.Errorf("Finish = %d, printed %q; want %d, %q", code, b.String(), ExitNotFound, want)
	}
	b.Reset()
	if a.Finish(ResultError(v1.ExecResult{Ending: "exited", ExitCode: 1})); b.Len() > 0 {
		t.Errorf("Finish of a failed command printed %q, want nothing", b.String())
	}
	want = "orchestrator: the command ended: oom\n"
	if a.Finish(ResultError(v1.ExecResult{Ending: "oom", Signal: 9})); b.String() != want {
		t.Errorf("Finish of an oom printed %q, want %q", b.String(), want)
	}
}
