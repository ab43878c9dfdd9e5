package jobs

import (
	"context"
	"encoding/xml"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestOutputKeepsLastBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "output")
	sp := newSpace(1 << 20)
	o, err := openOutput(sp, "j", path, 8)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.write(0, []byte("abcdef")); err != nil {
		t.Fatal(err)
	}
	if err := o.write(3, []byte("defghij")); err != nil { // three of the bytes are written again
		t.Fatal(err)
	}
	if err := o.close(); err != nil {
		t.Fatal(err)
	}
	if o, err = openOutput(nil, "j", path, 1); err != nil {
		t.Fatal(err)
	}
	defer o.close()
	first, data, err := o.read(0, 100)
	if err != nil || first != 2 || string(data) != "cdefghij" || o.end() != 10 || !o.truncated() {
		t.Errorf("read(0) = %d, %q, %v of %d bytes; want the last 8 of 10", first, data, err, o.end())
	}
	if first, data, err = o.read(7, 2); err != nil || first != 7 || string(data) != "hi" {
		t.Errorf("read(7, 2) = %d, %q, %v; want 7, hi", first, data, err)
	}
	if sp.used["j"] != 8+fileBytes {
		t.Errorf("counted %d bytes, want 8 and those of a file", sp.used["j"])
	}
}

func TestOutputWithoutSpaceIsCounted(t *testing.T) {
	sp := newSpace(4 + fileBytes)
	o, err := openOutput(sp, "j", filepath.Join(t.TempDir(), "output"), 100)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.write(0, []byte("123")); err != nil {
		t.Fatal(err)
	}
	if err := o.write(3, []byte("4567")); err != nil {
		t.Fatal(err)
	}
	if first, data, err := o.read(0, 100); err != nil || first != 7 || len(data) > 0 || !o.truncated() {
		t.Errorf("read(0) = %d, %q, %v; want nothing that is kept", first, data, err)
	}
	if err := o.close(); err != nil {
		t.Error(err)
	}
}

func TestSpaceIsBoundedPerCaller(t *testing.T) {
	sp := newSpace(10)
	if !sp.take("a", 6) || sp.take("b", 5) || !sp.take("b", 4) {
		t.Error("take of 6, then 5, then 4 of the 10 bytes of a caller: want true, false, true")
	}
	sp.drop("a")
	if !sp.take("b", 6) {
		t.Error("take of the room of a dropped job = false, want true")
	}
}

func TestJUnitCasesAreEscaped(t *testing.T) {
	attempt := func(ending string, code int, detail string) []v1.JobAttempt {
		return []v1.JobAttempt{{Attempt: 1, Result: v1.ExecResult{Ending: ending, ExitCode: code, Detail: detail, DurationMS: 1500}}}
	}
	suite := junitSuite{Name: `a"<b>&`}
	for _, r := range []v1.JobResult{
		{Name: `echo "<&>" ]]>`, State: stateEnded, Outcome: outcomeSucceeded, Attempts: attempt("exited", 0, "")},
		{Name: "b\x00\x1b", State: stateEnded, Outcome: outcomeFailed, Attempts: attempt("exited", 3, "")},
		{Name: "c", State: stateEnded, Outcome: outcomeUnknown, Attempts: attempt("unknown", -1, "<gone>")},
		{Name: "d", State: stateQueued},
	} {
		suite.add(testCase(r))
	}
	suite.Cases[0].Out = "</system-out>\x07"
	body, err := xml.Marshal(junitSuites{Suite: suite})
	if err != nil {
		t.Fatal(err)
	}
	var got junitSuites
	if err := xml.Unmarshal(body, &got); err != nil {
		t.Fatalf("invalid XML: %v\n%s", err, body)
	}
	u := got.Suite
	if u.Tests != 4 || u.Failures != 1 || u.Errors != 1 || u.Skipped != 1 || u.Name != suite.Name {
		t.Errorf("suite = %+v, want 4 tests, 1 failure, 1 error, 1 skipped", u)
	}
	if c := u.Cases[0]; c.Name != `echo "<&>" ]]>` || c.Out != "</system-out>\uFFFD" || c.Time != "1.500" {
		t.Errorf("case = %+v, want its text unchanged", c)
	}
	if f := u.Cases[1].Failure; f == nil || f.Message != "exit code 3" || strings.ContainsRune(u.Cases[1].Name, 0) {
		t.Errorf("case = %+v, want a failure with exit code 3", u.Cases[1])
	}
	if e := u.Cases[2].Error; e == nil || e.Message != "<gone>" || e.Type != "unknown" {
		t.Errorf("case = %+v, want an error of type unknown", u.Cases[2])
	}
}

// TestLargeRequestsOfCallerTakeTurns holds the slot that creating jobs and reports share.
func TestLargeRequestsOfCallerTakeTurns(t *testing.T) {
	sp := newSpace(1)
	if err := sp.enter(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sp.enter(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("second enter: %v, want Canceled", err)
	}
	sp.leave()
	if err := sp.enter(t.Context()); err != nil {
		t.Errorf("enter after leave: %v, want no error", err)
	}
}

// TestWaitersOfOtherCommandsSleep waits for two commands of a job. Each wake reads the database.
func TestWaitersOfOtherCommandsSleep(t *testing.T) {
	j := &job{changed: map[int]chan struct{}{}}
	s := &Service{active: map[string]*job{"j": j}}
	first, second := s.changedOf("j", 0), s.changedOf("j", 1)
	j.notify(0)
	select {
	case <-first:
	default:
		t.Error("the request that waits for the command sleeps, want it woken")
	}
	select {
	case <-second:
		t.Error("a request that waits for another command is woken, want it asleep")
	default:
	}
	if s.changedOf("other", 0) != nil {
		t.Error("changedOf(an ended job) is a channel, want nil")
	}
}

func TestPauseGrowsForNativeCommands(t *testing.T) {
	for _, c := range []struct {
		native    bool
		postponed int
		want      time.Duration
	}{
		{false, 1, time.Second}, {false, 100, time.Second}, {true, 1, time.Second}, {true, 2, 2 * time.Second},
		{true, 5, 16 * time.Second}, {true, 6, 30 * time.Second}, {true, 1000, 30 * time.Second},
	} {
		if got := pauseOf(c.native, c.postponed); got != c.want {
			t.Errorf("pauseOf(%t, %d) = %v, want %v", c.native, c.postponed, got, c.want)
		}
	}
}
