package job

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

// TestImportantColumnsFitIn80 prints an ended job. Names and details follow and may be long.
func TestImportantColumnsFitIn80(t *testing.T) {
	table := &cli.Table{Head: head()}
	table.Add(row(v1.Job{
		ID: "01a20896-2424-72a8-b783-354e83f0c26d", Name: strings.Repeat("n", 60), State: "ended", Ending: "succeeded",
		Commands: v1.JobCounts{Total: 10, Succeeded: 10}, CreatedAt: time.Now().Add(-3 * time.Hour), Detail: "detail",
	})...)
	var out bytes.Buffer
	if err := table.Write(&out); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"AGE", "succeeded   10 of 10 succeeded   3h"} {
		line := []rune(strings.Split(out.String(), "\n")[i])
		if first := string(line[:min(len(line), 80)]); !strings.Contains(first, want) {
			t.Errorf("the first 80 columns are %q, want them to have %q", first, want)
		}
	}
}

// hanging answers no request until its context ends.
type hanging struct{ asked chan struct{} }

func (h hanging) RoundTrip(r *http.Request) (*http.Response, error) {
	close(h.asked)
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

func TestInterruptedWaitReportsRunningJob(t *testing.T) {
	h := hanging{make(chan struct{})}
	cl, err := client.New(client.Options{Address: "http://host:1", Transport: h})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-h.asked
		cancel(&cli.Interrupted{Signal: syscall.SIGINT})
	}()
	var out, notes bytes.Buffer
	err = wait(ctx, &cli.App{Stdout: &out, Stderr: &notes}, cl.Jobs, "j", "")
	if code := cli.ExitCode(err); code != 130 {
		t.Errorf("wait: %v with exit code %d, want 130", err, code)
	}
	if want := "orchestrator: job j goes on: \"orchestrator job cancel j\" ends it\n"; notes.String() != want {
		t.Errorf("stderr = %q, want %q", notes.String(), want)
	}
}

func TestSplitInput(t *testing.T) {
	for _, c := range []struct{ arg, volume, from, to string }{
		{"a/test.py", "", "a/test.py", "test.py"},
		{"a/test.py:b/c.py", "", "a/test.py", "b/c.py"},
		{"a:b:c", "", "a", "b:c"},
		{`C:\a\test.py:b/c.py`, "C:", `C:\a\test.py`, "b/c.py"},
		{"C:a/test.py", "C:", "C:a/test.py", "test.py"},
	} {
		if from, to := splitInput(c.arg, c.volume); from != c.from || to != c.to {
			t.Errorf("splitInput(%q, %q) = %q, %q; want %q, %q", c.arg, c.volume, from, to, c.from, c.to)
		}
	}
}
