//go:build integration

package scenarios

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestJobs runs jobs on a server that all cases share.
func TestJobs(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, roomy, func(t *testing.T, s *harness.Server) {
		for _, c := range []struct {
			name string
			run  func(*testing.T, *harness.Server)
		}{
			{"a list", testJobList},
			{"a matrix with files", testJobMatrix},
			{"retries", testJobRetries},
			{"cancel", testJobCancel},
			{"deadline", testJobDeadline},
			{"artifacts and report", testJobArtifacts},
			{"workspace", testJobWorkspace},
			{"output is bounded", testJobOutput},
			{"other callers", testJobsOfOthers},
			{"restart", testJobRestart},
			{"command line", testJobCLI},
		} {
			t.Run(c.name, func(t *testing.T) {
				defer s.For(t)()
				c.run(t, s)
			})
		}
		awaitNoLease(t, s)
	})
}

// job starts a job.
func job(t *testing.T, s *harness.Server, r v1.JobRequest) v1.Job {
	t.Helper()
	j, err := s.Client.Jobs.Create(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

// awaitJob waits for a job's end and returns it with its commands.
func awaitJob(t *testing.T, s *harness.Server, id string) (v1.Job, []v1.JobResult) {
	t.Helper()
	j, err := s.Client.Jobs.Wait(within(t), id)
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Client.Jobs.Results(within(t), id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	return j, list
}

// jobOutput returns the kept output of a command.
func jobOutput(t *testing.T, s *harness.Server, id string, index int, stream string) string {
	t.Helper()
	var out bytes.Buffer
	r := client.JobOutputRequest{Index: index, OutputRequest: client.OutputRequest{Stream: stream}}
	if err := s.Client.Jobs.CopyOutput(within(t), id, r, true, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// shells returns commands for the sandbox's shell.
func shells(text ...string) []v1.JobCommand {
	out := make([]v1.JobCommand, 0, len(text))
	for _, c := range text {
		out = append(out, v1.JobCommand{Exec: v1.Exec{Command: c}})
	}
	return out
}

func testJobList(t *testing.T, s *harness.Server) {
	j := job(t, s, v1.JobRequest{
		Name: "list", Parallelism: 4,
		Commands: shells("echo 0; echo e >&2", "exit 7", "kill -9 $$", "touch mine; ls; echo 3", "ls; echo 4"),
	})
	if j.State == "ended" || j.Commands.Total != 5 {
		t.Errorf("new job = %+v, want 5 commands and a state other than ended", j)
	}
	got, list := awaitJob(t, s, j.ID)
	if want := (v1.JobCounts{Total: 5, Succeeded: 3, Failed: 2}); got.Ending != "failed" || got.Commands != want {
		t.Errorf("job = %+v, want failed with %+v", got, want)
	}
	for i, want := range []string{"exited 0", "exited 7", "signalled -1", "exited 0", "exited 0"} {
		a := list[i].Attempts
		if len(a) != 1 || fmt.Sprint(a[0].Result.Ending, " ", a[0].Result.ExitCode) != want || a[0].StartedAt == nil {
			t.Errorf("attempts of command %d = %+v, want one with %s", i, a, want)
		}
	}
	for i, want := range map[int]string{0: "0\n", 3: "mine\n3\n", 4: "4\n"} {
		if out := jobOutput(t, s, j.ID, i, "stdout"); out != want {
			t.Errorf("stdout of command %d = %q, want %q", i, out, want)
		}
	}
	if out := jobOutput(t, s, j.ID, 0, "stderr"); out != "e\n" {
		t.Errorf("stderr = %q, want e", out)
	}
	if err := s.Client.Jobs.Remove(within(t), j.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.Jobs.Get(within(t), j.ID); !errdefs.IsNotFound(err) {
		t.Errorf("Get of a removed job: %v, want NotFound", err)
	}
}

func testJobMatrix(t *testing.T, s *harness.Server) {
	j := job(t, s, v1.JobRequest{
		Exec:   v1.Exec{Command: `cat in/f; ./run; echo "$A$B$C $ORCHESTRATOR_JOB_COMMAND"`, Env: map[string]string{"C": "c"}},
		Matrix: map[string][]string{"B": {"x", "y"}, "A": {"1", "2"}}, Parallelism: 2,
		Files: []v1.JobFile{{Path: "in/f", Content: "text "}, {Path: "run", Base64: "IyEvYmluL3NoCmVjaG8gcmFuCg==", Mode: "0755"}},
	})
	if got, list := awaitJob(t, s, j.ID); got.Ending != "succeeded" || len(list) != 4 {
		t.Fatalf("job = %+v with %d commands, want it succeeded with 4", got, len(list))
	}
	for i, want := range []string{"1xc 0", "1yc 1", "2xc 2", "2yc 3"} {
		if out := jobOutput(t, s, j.ID, i, ""); out != "text ran\n"+want+"\n" {
			t.Errorf("output of command %d = %q, want it to end with %q", i, out, want)
		}
	}
}

func testJobRetries(t *testing.T, s *harness.Server) {
	j := job(t, s, v1.JobRequest{
		Commands: shells(
			`[ "$ORCHESTRATOR_JOB_ATTEMPT" = 3 ] && echo done || exit 75`, "exit 75", "exit 1", "no-such-directory/program", "sleep 100"),
		Exec:    v1.Exec{TimeoutMS: 3000},
		Retries: 2, RetryOn: []string{"exit:75", "timeout"}, Parallelism: 3,
	})
	_, list := awaitJob(t, s, j.ID)
	for i, want := range []struct {
		attempts int
		outcome  string
	}{{3, "succeeded"}, {3, "failed"}, {1, "failed"}, {1, "failed"}, {3, "failed"}} {
		if got := list[i]; len(got.Attempts) != want.attempts || got.Outcome != want.outcome {
			t.Errorf("command %d = %+v, want %+v", i, got, want)
		}
	}
	// An exit code is not retried unless that was asked for.
	j = job(t, s, v1.JobRequest{Exec: v1.Exec{Command: "exit 75"}, Retries: 2})
	if _, list := awaitJob(t, s, j.ID); len(list[0].Attempts) != 1 {
		t.Errorf("attempts = %+v, want one", list[0].Attempts)
	}
}

func testJobCancel(t *testing.T, s *harness.Server) {
	word := uniqueWord()
	j := job(t, s, v1.JobRequest{Commands: shells("echo begun; exec -a "+word+" sleep 1000", "echo never")})
	awaitProcesses(t, word, 1)
	harness.Eventually(t, harness.Long, "the command has written", func() bool {
		out, err := s.Client.Jobs.Output(within(t), j.ID, client.JobOutputRequest{})
		return err == nil && out.Data == "begun\n"
	})
	if err := s.Client.Jobs.Remove(within(t), j.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove of a running job: %v, want FailedPrecondition", err)
	}
	if _, err := s.Client.Jobs.Cancel(within(t), j.ID); err != nil {
		t.Fatal(err)
	}
	got, list := awaitJob(t, s, j.ID)
	if want := (v1.JobCounts{Total: 2, Cancelled: 2}); got.Ending != "cancelled" || got.Commands != want {
		t.Errorf("job = %+v, want %+v", got, want)
	}
	if a := list[0].Attempts; len(a) != 1 || a[0].Result.Ending != "cancelled" {
		t.Errorf("attempts of the running command = %+v, want one that was cancelled", a)
	}
	if a := list[1].Attempts; len(a) != 0 {
		t.Errorf("attempts of the queued command = %+v, want none", a)
	}
	assertNoProcess(t, word)
	if out := jobOutput(t, s, j.ID, 0, ""); out != "begun\n" {
		t.Errorf("output = %q, want %q", out, "begun\n")
	}
}

func testJobDeadline(t *testing.T, s *harness.Server) {
	j := job(t, s, v1.JobRequest{Commands: shells("sleep 1000", "echo never"), DeadlineMS: 3000})
	got, _ := awaitJob(t, s, j.ID)
	if want := (v1.JobCounts{Total: 2, Cancelled: 2}); got.Ending != "deadline" || got.Commands != want {
		t.Errorf("job = %+v, want deadline with %+v", got, want)
	}
}

func testJobArtifacts(t *testing.T, s *harness.Server) {
	j := job(t, s, v1.JobRequest{
		Name: "tests", Artifacts: []string{"out/**/*.xml", "*.log"},
		Commands: shells("mkdir -p out/a/b; echo 1 >out/a/b/r.xml; echo 2 >x.log; echo 3 >no; ln -s /etc/passwd p.log", "echo failed; exit 3"),
	})
	awaitJob(t, s, j.ID)
	list, err := s.Client.Jobs.Artifacts(within(t), j.ID)
	const want = "[{0 out/a/b/r.xml 2} {0 x.log 2}]"
	if err != nil || fmt.Sprint(list) != want {
		t.Errorf("artifacts = %v, %v; want %s and no error", list, err, want)
	}
	body, err := s.Client.Jobs.Artifact(within(t), j.ID, 0, "out/a/b/r.xml")
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	if text, err := io.ReadAll(body); err != nil || string(text) != "1\n" {
		t.Errorf("artifact = %q, %v; want 1", text, err)
	}
	report, err := s.Client.Jobs.JUnit(within(t), j.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer report.Close()
	text, err := io.ReadAll(report)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`name="tests" tests="2" failures="1" errors="0" skipped="0"`, `message="exit code 3"`, "<system-out>failed",
	} {
		assertContains(t, string(text), part)
	}
}

func testJobWorkspace(t *testing.T, s *harness.Server) {
	name := workspace(t, s)
	r := v1.JobRequest{Workspace: name, Commands: shells("echo a >>f", "echo b >>f", "cat f")}
	j := job(t, s, r)
	if got, _ := awaitJob(t, s, j.ID); got.Ending != "succeeded" {
		t.Errorf("job = %+v, want it succeeded", got)
	}
	if out := jobOutput(t, s, j.ID, 2, ""); out != "a\nb\n" {
		t.Errorf("output = %q, want what the commands wrote in order", out)
	}
	r.Parallelism = 2
	_, err := s.Client.Jobs.Create(within(t), r)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "set read_only, mode overlay, or parallelism 1") {
		t.Errorf("parallel job that writes to a workspace: %v, want InvalidArgument with a way out", err)
	}
}

func testJobOutput(t *testing.T, s *harness.Server) {
	j := job(t, s, v1.JobRequest{Exec: v1.Exec{Command: "seq 1000000", MaxOutputBytes: 100_000}})
	_, list := awaitJob(t, s, j.ID)
	out := jobOutput(t, s, j.ID, 0, "")
	if res := list[0].Attempts[0].Result; !res.Truncated || res.StdoutBytes != 6888896 {
		t.Errorf("result = %+v, want 6888896 bytes and truncated", res)
	}
	if len(out) != 100_000 || !strings.HasSuffix(out, "999999\n1000000\n") {
		t.Errorf("%d bytes of output are kept, want the last 100000", len(out))
	}
}

func testJobsOfOthers(t *testing.T, s *harness.Server) {
	bob := newCaller(t, s, `{"caller":"bob","trust":3}`)
	low := newCaller(t, s, `{"caller":"low","trust":1}`)
	j := job(t, s, v1.JobRequest{Exec: v1.Exec{Command: "echo mine"}})
	awaitJob(t, s, j.ID)
	for _, c := range [][2]string{
		{"GET", ""}, {"DELETE", ""}, {"POST", "/cancel"}, {"GET", "/commands"}, {"GET", "/commands/0/output"},
		{"GET", "/artifacts"}, {"GET", "/commands/0/artifact?path=f"}, {"GET", "/junit"},
	} {
		if got := bob.request(t, c[0], "/v1/jobs/"+j.ID+c[1], ""); got.Status != http.StatusNotFound {
			t.Errorf("%s %s by another caller: status %d, want 404: %s", c[0], c[1], got.Status, got.Body)
		}
	}
	if got := bob.request(t, "GET", "/v1/jobs", ""); !strings.Contains(string(got.Body), `"items":[]`) {
		t.Errorf("jobs of another caller = %s, want none", got.Body)
	}
	if got := low.request(t, "POST", "/v1/jobs", `{"argv":["true"]}`); got.Status != http.StatusForbidden {
		t.Errorf("job of a caller that may not run: status %d, want 403: %s", got.Status, got.Body)
	}
	var own v1.Job
	bob.request(t, "POST", "/v1/jobs", `{"argv":["true"]}`).Into(t, &own)
	if got, _ := awaitJob(t, s, own.ID); got.Caller != "bob" || got.Ending != "succeeded" {
		t.Errorf("bob's job as an operator sees it = %+v, want caller bob and ending succeeded", got)
	}
}

// testJobRestart restarts the service while commands run. They go on, and none runs twice.
func testJobRestart(t *testing.T, s *harness.Server) {
	word := uniqueWord()
	j := job(t, s, v1.JobRequest{Parallelism: 2, Commands: shells(
		"echo a; until [ -e go ]; do sleep 0.1; done; echo b; : "+word, "echo c; until [ -e go ]; do sleep 0.1; done; echo d; : "+word,
		"echo e")})
	var running []v1.JobResult
	harness.Eventually(t, harness.Long, "two commands have written", func() bool {
		list, err := s.Client.Jobs.Results(within(t), j.ID, 0, 0)
		if err != nil {
			return false
		}
		running = list
		for i := range 2 {
			out, err := s.Client.Jobs.Output(within(t), j.ID, client.JobOutputRequest{Index: i})
			if err != nil || out.Data == "" {
				return false
			}
		}
		return true
	})
	s.Kill9()
	s.Start()
	for _, r := range running[:2] {
		if _, err := s.Client.Exec(within(t), r.SandboxID, v1.Exec{Command: "touch go"}); err != nil {
			t.Fatal(err)
		}
	}
	got, list := awaitJob(t, s, j.ID)
	if got.Ending != "succeeded" {
		t.Errorf("job = %+v %+v, want it succeeded", got, list)
	}
	for i, want := range []string{"a\nb\n", "c\nd\n", "e\n"} {
		if out := jobOutput(t, s, j.ID, i, ""); out != want || len(list[i].Attempts) != 1 {
			t.Errorf("output of command %d = %q in %d attempts, want %q in one", i, out, len(list[i].Attempts), want)
		}
	}
}

func testJobCLI(t *testing.T, s *harness.Server) {
	s.CLI(t, "job", "run", "--wait", "-p", "2", "--matrix", "N=1,2", "-c", "exit $((N-1))").Is(t, 1, "1 of 2 commands succeeded")
	s.CLI(t, "job", "run", "--wait", "--", "true").Is(t, 0, "")
	s.CLI(t, "job", "run", "--retry-on", "oom", "--", "true").Is(t, 64, "retry_on needs retries")
	s.CLI(t, "job", "logs", "nope").Is(t, 66, `job "nope" not found`)
	if got := s.CLI(t, "job", "ls"); got.Code != 0 || !strings.Contains(got.Stdout, "2 of 2 succeeded") &&
		!strings.Contains(got.Stdout, "1 of 1 succeeded") {
		t.Errorf("job ls = %+v, want code 0, and %q or %q", got, "2 of 2 succeeded", "1 of 1 succeeded")
	}
}
