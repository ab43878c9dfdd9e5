package jobs

import (
	"bytes"
	"context"
	"encoding/xml"
	"strconv"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// reportOutput bounds each stream of a command in a report, in bytes: its last ones. reportTotal
// bounds all of them.
const (
	reportOutput = 16 << 10
	reportTotal  = 4 << 20 // in XML it can be six times as long
)

type junitSuites struct {
	XMLName xml.Name   `xml:"testsuites"`
	Suite   junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name      string      `xml:"name,attr"`
	Tests     int         `xml:"tests,attr"`
	Failures  int         `xml:"failures,attr"`
	Errors    int         `xml:"errors,attr"`
	Skipped   int         `xml:"skipped,attr"`
	Time      string      `xml:"time,attr"`
	Timestamp string      `xml:"timestamp,attr"`
	Cases     []junitCase `xml:"testcase"`
}

type junitCase struct {
	Class   string      `xml:"classname,attr"`
	Name    string      `xml:"name,attr"`
	Time    string      `xml:"time,attr"`
	Failure *junitFault `xml:"failure"`
	Error   *junitFault `xml:"error"`
	Skipped *junitFault `xml:"skipped"`
	Out     string      `xml:"system-out,omitempty"`
	Err     string      `xml:"system-err,omitempty"`
}

// junitFault is why a case did not pass. Its type is the command's ending.
type junitFault struct {
	Type    string `xml:"type,attr,omitempty"`
	Message string `xml:"message,attr"`
}

// JUnit returns a report with one test case for each command. A command that has not ended or never
// ran is skipped.
func (s *Service) JUnit(ctx context.Context, p caller.Principal, id string) ([]byte, error) {
	job, err := s.Get(ctx, p, id, 0)
	if err != nil {
		return nil, err
	}
	sp := s.callerSpace(job.Caller)
	if err := sp.enter(ctx); err != nil {
		return nil, err
	}
	defer sp.leave()
	suite := junitSuite{Name: job.Name, Timestamp: job.CreatedAt.UTC().Format("2006-01-02T15:04:05")}
	if suite.Name == "" {
		suite.Name = "orchestrator job " + job.ID
	}
	var took int64
	left := int64(reportTotal)
	for from := 0; ; {
		list, err := s.Results(ctx, p, id, from, 0)
		if err != nil {
			return nil, err
		}
		if len(list) == 0 {
			break
		}
		for _, r := range list {
			c := testCase(r)
			for _, a := range r.Attempts {
				took += a.Result.DurationMS
			}
			if n := len(r.Attempts); n > 0 && left > 0 {
				last := r.Attempts[n-1]
				c.Out = s.tail(id, r.Index, last.Attempt, "stdout", &left)
				c.Err = s.tail(id, r.Index, last.Attempt, "stderr", &left)
			}
			suite.add(c)
			from = r.Index + 1
		}
	}
	suite.Time = seconds(took)
	body := bytes.NewBufferString(xml.Header)
	e := xml.NewEncoder(body)
	e.Indent("", "  ")
	err = e.Encode(junitSuites{Suite: suite})
	body.WriteByte('\n')
	return body.Bytes(), err
}

func (u *junitSuite) add(c junitCase) {
	u.Tests++
	switch {
	case c.Failure != nil:
		u.Failures++
	case c.Error != nil:
		u.Errors++
	case c.Skipped != nil:
		u.Skipped++
	}
	u.Cases = append(u.Cases, c)
}

// testCase returns the case of a command, without output.
func testCase(r v1.JobResult) junitCase {
	c := junitCase{Class: "orchestrator.job", Name: r.Name, Time: "0.000"}
	if r.State != stateEnded || len(r.Attempts) == 0 {
		c.Skipped = &junitFault{Message: "it did not run: the command is " + r.State}
		return c
	}
	res := r.Attempts[len(r.Attempts)-1].Result
	c.Time = seconds(res.DurationMS)
	fault := &junitFault{Type: res.Ending, Message: res.Detail}
	switch runtime.Ending(res.Ending) {
	case runtime.Exited:
		fault.Message = "exit code " + strconv.Itoa(res.ExitCode)
	case runtime.Signalled:
		fault.Message = "signal " + strconv.Itoa(res.Signal)
	default: // Detail describes it
	}
	switch r.Outcome {
	case outcomeFailed:
		c.Failure = fault
	case outcomeCancelled, outcomeUnknown:
		c.Error = fault
	}
	return c
}

// tail returns the last bytes of a stream as text for a report, and subtracts them from left.
func (s *Service) tail(id string, index, attempt int, stream string, left *int64) string {
	o, err := openOutput(nil, id, s.outputPath(id, index, attempt, stream), 1)
	if err != nil {
		return ""
	}
	defer o.close()
	_, data, err := o.read(max(0, o.end()-min(reportOutput, *left)), reportOutput)
	if err != nil {
		return ""
	}
	*left -= int64(len(data))
	return clip.Valid(string(data))
}

func seconds(ms int64) string { return strconv.FormatFloat(float64(ms)/1000, 'f', 3, 64) }
