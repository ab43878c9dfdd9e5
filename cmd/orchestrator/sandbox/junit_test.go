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
		io.WriteString(a.Stdout, "a\x00<b>\xff")
		if err := j.finish(a, c.err); !errors.Is(err, c.err) {
			t.Errorf("%s: gives back %v", name, err)
		}
		body, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var got junitSuites
		if err := xml.Unmarshal(body, &got); err != nil {
			t.Fatalf("%s: %v in %s", name, err, body)
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
			t.Errorf("%s: %s", name, body)
		}
		if out.String() != "a\x00<b>\xff" {
			t.Errorf("%s: printed %q", name, out.String())
		}
	}
}

func TestReportWriteErrorIsReported(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "report.xml")
	var said bytes.Buffer
	a := &cli.App{Stdout: io.Discard, Stderr: &said}
	if err := newReport(a, path, "x", v1.Exec{}).finish(a, nil); err == nil {
		t.Error("no error")
	}
	bad := &cli.EndedError{Result: v1.ExecResult{Ending: string(runtime.Exited), ExitCode: 3}}
	if err := newReport(a, path, "x", v1.Exec{}).finish(a, bad); !errors.Is(err, bad) || said.Len() == 0 {
		t.Errorf("gives back %v and says %q", err, said.String())
	}
	if err := newReport(a, "", "x", v1.Exec{}).finish(a, bad); !errors.Is(err, bad) {
		t.Errorf("without a report it gives back %v", err)
	}
}
