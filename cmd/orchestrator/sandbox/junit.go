package sandbox

import (
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// maxReport is how much of each stream a report holds, its head and its tail.
	maxReport = 256 << 10
	// maxCaseName bounds the name of a test case that is a command line.
	maxCaseName = 200
)

// junit is a report of one command as JUnit's XML.
type junit struct {
	path, name string
	began      time.Time
	out, err   *tool.Keeper
}

// newReport begins a report where one is asked for: what is printed from then on is
// in it.
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

// junitFailure is why a case did not pass: its type is a command's ending, or
// "not_run".
type junitFailure struct {
	Type    string `xml:"type,attr"`
	Message string `xml:"message,attr"`
}

// finish writes the report and gives back the error that the command ended
// with. That it could not be written is an error where there is no other, and
// told where there is.
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
	return writeFileAtomically(j.path, append(append([]byte(xml.Header), body...), '\n'))
}

// failureOf names what went wrong, and says whether the command did.
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
		return fault, false // nobody knows how it would have ended
	}
	return fault, true
}

// writeFileAtomically writes a file whole or leaves what was there.
func writeFileAtomically(path string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), ".junit-*")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write the report: %w", err), os.Remove(f.Name()))
		}
	}()
	if _, err := f.Write(content); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
