package sandbox

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// maxReport bounds each stream in a report, in bytes: its head and its tail.
	maxReport = 256 << 10
	// maxCaseName bounds the name of a test case that is a command line.
	maxCaseName = 200
)

// junit is a JUnit XML report of one command.
type junit struct {
	path, name string
	began      time.Time
	out, err   *tool.Keeper
}

// newReport starts a report, or returns nil if none is asked for. It captures what is printed from
// then on.
func newReport(a *cli.App, path, name string, x v1.Exec) *junit {
	if path == "" {
		return nil
	}
	if name == "" {
		if name = x.Command; name == "" {
			name = strings.Join(x.Argv, " ")
		}
		name, _, _ = strings.Cut(strings.TrimSpace(name), "\n")
		name = strings.ToValidUTF8(name[:min(len(name), maxCaseName)], "")
	}
	cut := tool.Cut{Limit: maxReport}
	j := &junit{path: path, name: name, began: time.Now(), out: tool.NewKeeper(cut), err: tool.NewKeeper(cut)}
	a.Stdout, a.Stderr = io.MultiWriter(a.Stdout, j.out), io.MultiWriter(a.Stderr, j.err)
	return j
}

type junitSuites struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suite   junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string    `xml:"name,attr"`
	Tests     int       `xml:"tests,attr"`
	Failures  int       `xml:"failures,attr"`
	Errors    int       `xml:"errors,attr"`
	Time      string    `xml:"time,attr"`
	Timestamp string    `xml:"timestamp,attr"`
	Case      junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    string        `xml:"time,attr"`
	Failure *junitFailure `xml:"failure"`
	Error   *junitFailure `xml:"error"`
	Out     string        `xml:"system-out,omitempty"`
	Err     string        `xml:"system-err,omitempty"`
}

// junitFailure is why a case did not pass. Its type is the command's ending or "not_run".
type junitFailure struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
}

// finish writes the report and returns the command's error. If the report cannot be written, it
// returns that error, or prints it if there is another.
func (j *junit) finish(a *cli.App, ended error) error {
	if j == nil {
		return ended
	}
	err := j.write(ended)
	if err != nil && ended != nil {
		a.Note("%v", err)
		return ended
	}
	return errors.Join(ended, err)
}

func (j *junit) write(end error) error {
	took := strconv.FormatFloat(time.Since(j.began).Seconds(), 'f', 3, 64)
	c := junitCase{Class: "orchestrator.run", Name: j.name, Time: took}
	c.Out, _ = j.out.Text()
	c.Err, _ = j.err.Text()
	s := junitSuite{Name: "orchestrator run", Tests: 1, Time: took, Timestamp: j.began.UTC().Format("2006-01-02T15:04:05")}
	if end != nil {
		fault, failed := failureOf(end)
		if failed {
			c.Failure, s.Failures = fault, 1
		} else {
			c.Error, s.Errors = fault, 1
		}
	}
	s.Case = c
	body, err := xml.MarshalIndent(junitSuites{Suite: s}, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report %s: %w", j.path, err)
	}
	if err := cli.SaveFile(j.path, 0o644, io.MultiReader(strings.NewReader(xml.Header), bytes.NewReader(body),
		strings.NewReader("\n"))); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// failureOf describes an error, and reports whether the command itself failed.
func failureOf(err error) (fault *junitFailure, failed bool) {
	e, ok := errors.AsType[*cli.EndedError](err)
	if !ok {
		return &junitFailure{Type: "not_run", Message: cli.OneLine(cli.Describe(err))}, false
	}
	r := e.Result
	fault = &junitFailure{Type: r.Ending, Message: r.Detail}
	switch runtime.Ending(r.Ending) {
	case runtime.Exited:
		fault.Message = "exit code " + strconv.Itoa(r.ExitCode)
	case runtime.Signalled:
		fault.Message = "signal " + strconv.Itoa(r.Signal)
	case runtime.SandboxLost, runtime.Cancelled:
		return fault, false // the outcome of the command is not known
	default: // a limit or a refusal, which Detail describes
	}
	return fault, true
}
