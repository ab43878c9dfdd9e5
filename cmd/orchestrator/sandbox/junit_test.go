package sandbox

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestReportHasEnding(t *testing.T) {
	const printed = "a\x00<b>\xff"
	for name, c := range map[string]struct {
		err            error
		fault          string
		failed, errors int
	}{
		"well":   {nil, "", 0, 0},
		"badly":  {&cli.EndedError{Result: v1.ExecResult{Ending: string(runtime.Exited), ExitCode: 3}}, "exited", 1, 0},
		"late":   {&cli.EndedError{Result: v1.ExecResult{Ending: string(runtime.Timeout)}}, "timeout", 1, 0},
		"lost":   {&cli.EndedError{Result: v1.ExecResult{Ending: string(runtime.SandboxLost)}}, "sandbox_lost", 0, 1},
		"not at": {errors.New("no room"), "not_run", 0, 1},
	} {
		path := filepath.Join(t.TempDir(), "report.xml")
		var out bytes.Buffer
		a := &cli.App{Stdout: &out, Stderr: io.Discard}
		j := newReport(a, path, "", v1.Exec{Command: "make test\nsecond line"})
		io.WriteString(a.Stdout, printed)
		if err := j.finish(a, c.err); !errors.Is(err, c.err) {
			t.Errorf("%s: finish = %v, want %v", name, err, c.err)
		}
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got junitSuites
		if err := xml.Unmarshal(body, &got); err != nil {
			t.Fatalf("%s: Unmarshal = %v, want no error:\n%s", name, err, body)
		}
		s := got.Suite
		fault := ""
		for _, f := range []*junitFailure{s.Case.Failure, s.Case.Error} {
			if f != nil {
				fault = f.Type
			}
		}
		if s.Tests != 1 || s.Failures != c.failed || s.Errors != c.errors || fault != c.fault || s.Case.Name != "make test" ||
			s.Case.Out != "a\ufffd<b>\ufffd" {
			t.Errorf("%s: report has type %q, want %q, %d failures, %d errors, make test:\n%s", name, fault, c.fault, c.failed,
				c.errors, body)
		}
		if out.String() != printed {
			t.Errorf("%s: printed %q, want %q", name, out.String(), printed)
		}
	}
}

func TestReportWriteErrorIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "report.xml")
	var said bytes.Buffer
	a := &cli.App{Stdout: io.Discard, Stderr: &said}
	if err := newReport(a, path, "x", v1.Exec{}).finish(a, nil); err == nil {
		t.Error("finish without the directory = nil, want an error")
	}
	bad := &cli.EndedError{Result: v1.ExecResult{Ending: string(runtime.Exited), ExitCode: 3}}
	if err := newReport(a, path, "x", v1.Exec{}).finish(a, bad); !errors.Is(err, bad) || said.Len() == 0 {
		t.Errorf("finish = %v, printed %q; want %v and some text", err, said.String(), bad)
	}
	if err := newReport(a, "", "x", v1.Exec{}).finish(a, bad); !errors.Is(err, bad) {
		t.Errorf("finish without a report = %v, want %v", err, bad)
	}
}
