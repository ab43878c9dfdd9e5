package jobs_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/jobs"
)

func TestJobRunsListAndKeepsResults(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{
		Name: "list", Parallelism: 3, Commands: texts("zero", "exit 7", "signal", "oom", "refused"),
	})
	if j.Commands.Total != 5 || j.Caller != "bob" || j.Name != "list" {
		t.Errorf("new job = %+v, want job list of bob with 5 commands", j)
	}
	got, list := s.await(t, bob, j.ID)
	if want := (v1.JobCounts{Total: 5, Succeeded: 1, Failed: 4}); got.Ending != "failed" || got.Commands != want ||
		got.ExpiresAt == nil || got.EndedAt == nil {
		t.Errorf("job = %+v, want failed with %+v", got, want)
	}
	for i, want := range []string{"exited 0", "exited 7", "signalled -1", "oom -1", "not_run -1"} {
		a := list[i].Attempts
		if len(a) != 1 || fmt.Sprint(a[0].Result.Ending, " ", a[0].Result.ExitCode) != want {
			t.Errorf("attempts of command %d = %+v, want one with %s", i, a, want)
		}
	}
	if err := s.Jobs.Remove(t.Context(), bob, j.ID); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(w.dir, "jobs", "*")); err != nil || len(left) > 0 {
		t.Errorf("files of a removed job = %v, %v; want none", left, err)
	}
}

func TestMatrixRunsEveryCombinationInOrder(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{
		Commands: texts("a", "b"), Matrix: map[string][]string{"Y": {"1", "2"}, "X": {"p", "q"}},
	})
	_, list := s.await(t, bob, j.ID)
	var names []string
	for _, c := range list {
		names = append(names, c.Name)
	}
	want := "a [X=p Y=1] a [X=p Y=2] a [X=q Y=1] a [X=q Y=2] b [X=p Y=1] b [X=p Y=2] b [X=q Y=1] b [X=q Y=2]"
	if strings.Join(names, " ") != want {
		t.Errorf("commands = %q, want %q", names, want)
	}
	if ran := w.started(); !slices.Equal(ran, []string{"a", "a", "a", "a", "b", "b", "b", "b"}) {
		t.Errorf("order of commands at parallelism 1 = %q, want that of the list", ran)
	}
}

func TestRetriesFollowTheEnding(t *testing.T) {
	s := newWorld(t).start(t, 20)
	for _, c := range []struct {
		command  string
		on       []string
		attempts int
		outcome  string
	}{
		{"flaky", []string{"exit:75"}, 3, "succeeded"},
		{"exit 75", []string{"exit:75"}, 3, "failed"},
		{"exit 75", []string{"exited"}, 3, "failed"},
		{"exit 75", nil, 1, "failed"},
		{"exit 0", []string{"exited"}, 1, "succeeded"},
		{"exit 1", []string{"exit:75"}, 1, "failed"},
		{"oom", nil, 1, "failed"},
		{"oom", []string{"oom"}, 3, "failed"},
		{"refused", nil, 3, "failed"},
		{"lost", nil, 3, "unknown"},
		{"lost", []string{"oom"}, 1, "unknown"},
	} {
		j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: c.command}, Retries: 2, RetryOn: c.on})
		if _, list := s.await(t, bob, j.ID); len(list[0].Attempts) != c.attempts || list[0].Outcome != c.outcome {
			t.Errorf("%s retried on %v = %+v, want %d attempts and %s", c.command, c.on, list[0], c.attempts, c.outcome)
		}
	}
}

func TestDeadlineStopsJob(t *testing.T) {
	s := newWorld(t).start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("hold", "never"), DeadlineMS: 300})
	got, list := s.await(t, bob, j.ID)
	if want := (v1.JobCounts{Total: 2, Cancelled: 2}); got.Ending != "deadline" || got.Commands != want ||
		got.Detail != "the job's deadline passed" {
		t.Errorf("job = %+v, want deadline with %+v", got, want)
	}
	if a := list[0].Attempts; len(a) != 1 || a[0].Result.Ending != "cancelled" || len(list[1].Attempts) != 0 {
		t.Errorf("commands = %+v, want one attempt of the first", list)
	}
}

func TestCancelEndsQueuedAndRunningCommands(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Commands: texts("hold", "never")})
	eventually(t, "the first command runs", func() bool { return len(w.started()) == 1 })
	if err := s.Jobs.Remove(t.Context(), bob, j.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove of a running job: %v, want FailedPrecondition", err)
	}
	for range 2 { // the second changes nothing
		if _, err := s.Jobs.Cancel(t.Context(), bob, j.ID); err != nil {
			t.Fatal(err)
		}
	}
	got, list := s.await(t, bob, j.ID)
	if want := (v1.JobCounts{Total: 2, Cancelled: 2}); got.Ending != "cancelled" || got.Commands != want {
		t.Errorf("job = %+v, want cancelled with %+v", got, want)
	}
	if detail := list[0].Attempts[0].Result.Detail; detail != "the job was cancelled" {
		t.Errorf(`detail = %q, want "the job was cancelled"`, detail)
	}
	if ran := w.started(); len(ran) != 1 {
		t.Errorf("commands ran = %q, want only the first", ran)
	}
}

// TestCallersShareSandboxes starts a long job and then a short one of another caller.
func TestCallersShareSandboxes(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 4)
	long := s.create(t, bob, v1.JobRequest{Commands: texts(slices.Repeat([]string{"hold bob"}, 20)...), Parallelism: 20})
	eventually(t, "bob's commands run", func() bool { return len(w.started()) == 4 })
	short := s.create(t, eve, v1.JobRequest{Commands: texts("hold eve", "hold eve"), Parallelism: 2})
	for range 2 {
		before := len(w.started())
		w.release()
		eventually(t, "the next commands run", func() bool { return len(w.started()) >= before+4 })
	}
	if ran := w.started(); slices.Index(ran, "hold eve") < 0 || slices.Index(ran, "hold eve") > 5 {
		t.Errorf("order = %q, want eve's commands to start among the first after hers was created", ran)
	}
	for _, c := range []struct {
		p  caller.Principal
		id string
	}{{bob, long.ID}, {eve, short.ID}} {
		if _, err := s.Jobs.Cancel(t.Context(), c.p, c.id); err != nil {
			t.Fatal(err)
		}
		s.await(t, c.p, c.id)
	}
}

func TestJobsOfOthersAreNotFound(t *testing.T) {
	s := newWorld(t).start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "mine"}})
	s.await(t, bob, j.ID)
	ctx := t.Context()
	_, get := s.Jobs.Get(ctx, eve, j.ID, 0)
	_, results := s.Jobs.Results(ctx, eve, j.ID, 0, 0)
	_, cancel := s.Jobs.Cancel(ctx, eve, j.ID)
	_, output := s.Jobs.Output(ctx, eve, j.ID, outputAt(0))
	_, artifacts := s.Jobs.Artifacts(ctx, eve, j.ID, 0, "")
	_, _, artifact := s.Jobs.Artifact(ctx, eve, j.ID, 0, "f")
	_, junit := s.Jobs.JUnit(ctx, eve, j.ID)
	for i, err := range []error{get, results, cancel, output, artifacts, artifact, junit, s.Jobs.Remove(ctx, eve, j.ID)} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("request %d by another caller: %v, want NotFound", i, err)
		}
	}
	if list, err := s.Jobs.List(ctx, eve, false); err != nil || len(list) != 0 {
		t.Errorf("jobs of another caller = %v, %v; want none", list, err)
	}
	if _, err := s.Jobs.List(ctx, eve, true); !errdefs.IsPermissionDenied(err) {
		t.Errorf("all jobs for a caller: %v, want PermissionDenied", err)
	}
	if list, err := s.Jobs.List(ctx, me, true); err != nil || len(list) != 1 {
		t.Errorf("all jobs for an operator = %v, %v; want one", list, err)
	}
}

func TestIdempotencyKeyCreatesOneJob(t *testing.T) {
	s := newWorld(t).start(t, 20)
	p := bob
	p.Key = "k"
	first := s.create(t, p, v1.JobRequest{Exec: v1.Exec{Command: "once"}})
	if again := s.create(t, p, v1.JobRequest{Exec: v1.Exec{Command: "once"}}); again.ID != first.ID {
		t.Errorf("repeated request created %s, want %s", again.ID, first.ID)
	}
	s.await(t, bob, first.ID)
}

func outputAt(offset int64) jobs.OutputRequest {
	return jobs.OutputRequest{OutputRequest: core.OutputRequest{Stream: "stdout", Offset: offset}}
}

func TestOutputByOffset(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	j := s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "hold"}})
	r := outputAt(0)
	r.Wait = 30 * time.Second
	out, err := s.Jobs.Output(t.Context(), bob, j.ID, r)
	if err != nil || out.Data != "held\n" || out.EOF || out.NextOffset != 5 {
		t.Fatalf(`output of a running command = %+v, %v; want "held\n", next offset 5 and no EOF`, out, err)
	}
	w.release()
	s.await(t, bob, j.ID)
	for offset, want := range map[int64]string{0: "held\n", 2: "ld\n", 5: "", 99: ""} {
		out, err := s.Jobs.Output(t.Context(), bob, j.ID, outputAt(offset))
		if err != nil || out.Data != want || !out.EOF || out.NextOffset != 5 {
			t.Errorf("output from %d = %+v, %v; want %q and EOF", offset, out, err, want)
		}
	}
	bad := outputAt(0)
	bad.Attempt = 2
	if _, err := s.Jobs.Output(t.Context(), bob, j.ID, bad); !errdefs.IsInvalidArgument(err) {
		t.Errorf("output of an attempt that was not made: %v, want InvalidArgument", err)
	}
}

func TestInvalidRequestsNameField(t *testing.T) {
	w := newWorld(t)
	s := w.start(t, 20)
	x := v1.Exec{Command: "true"}
	for want, r := range map[string]v1.JobRequest{
		"commands is empty":              {},
		"commands and a command":         {Exec: x, Commands: texts("a")},
		"commands[1].":                   {Commands: []v1.JobCommand{{Exec: x}, {}}},
		"commands are over 10000":        {Exec: x, Matrix: map[string][]string{"A": make([]string, 101), "B": make([]string, 100)}},
		"parallelism is -1":              {Exec: x, Parallelism: -1},
		"parallelism is 2":               {Exec: x, Parallelism: 2, Workspace: "w"},
		"deadline_ms is":                 {Exec: x, DeadlineMS: 1 << 40},
		"ttl_ms is":                      {Exec: x, TTLMS: -5},
		"retries is 11":                  {Exec: x, Retries: 11},
		"retry_on needs retries":         {Exec: x, RetryOn: []string{"oom"}},
		`retry_on has "exit:0"`:          {Exec: x, Retries: 1, RetryOn: []string{"exit:0"}},
		`retry_on has "bad"`:             {Exec: x, Retries: 1, RetryOn: []string{"bad"}},
		`artifacts has the pattern "../`: {Exec: x, Artifacts: []string{"../x"}},
		`artifacts has the pattern "/et`: {Exec: x, Artifacts: []string{"/etc/*"}},
		`artifacts has the pattern "a/.`: {Exec: x, Artifacts: []string{"a/../../x"}},
		`files entry 0 has the path`:     {Exec: x, Files: []v1.JobFile{{Path: "../x"}}},
		"entry 0 has the path \"xx":      {Exec: x, Files: []v1.JobFile{{Path: strings.Repeat("x", 5000)}}},
		`files entry 0 has the mode`:     {Exec: x, Files: []v1.JobFile{{Path: "x", Mode: "999"}}},
		"files entry 0: base64":          {Exec: x, Files: []v1.JobFile{{Path: "x", Base64: "!"}}},
		"matrix has no values for A":     {Exec: x, Matrix: map[string][]string{"A": {}}},
		"image has no template":          {Exec: x, Image: "other/image:1"},
		"stdin is not for jobs":          {Exec: v1.Exec{Command: "true", Stdin: "x"}},
	} {
		_, err := s.Jobs.Create(t.Context(), bob, r)
		if err == nil || !strings.Contains(err.Error(), want) ||
			!errdefs.IsInvalidArgument(err) && !errdefs.IsNotFound(err) {
			t.Errorf("Create(%+v) = %v, want %q", r, err, want)
		}
	}
	if left, err := filepath.Glob(filepath.Join(w.dir, "jobs", "*")); err != nil || len(left) > 0 {
		t.Errorf("files of refused jobs = %v, %v; want none", left, err)
	}
}

// TestListsDoNotReadCommands runs commands that are long. Lists read all rows of a caller.
func TestListsDoNotReadCommands(t *testing.T) {
	s := newWorld(t).start(t, 20)
	long := "exit 0" + strings.Repeat(" ", 100_000)
	j := s.create(t, bob, v1.JobRequest{
		Exec: v1.Exec{Command: long}, Retries: 1, RetryOn: slices.Repeat([]string{"oom", "exit:75"}, 1000),
	})
	if got, _ := s.await(t, bob, j.ID); got.Ending != "succeeded" {
		t.Errorf("job = %+v, want it succeeded", got)
	}
	row, err := s.store.Jobs().Job(t.Context(), j.ID)
	if err != nil || len(row.Request) > 1000 {
		t.Errorf("request = %d bytes, %v; want it without the command", len(row.Request), err)
	}
	list, err := s.store.Jobs().JobCommands(t.Context(), j.ID, 0, 1)
	if err != nil || len(list) != 1 || len(list[0].Exec) > 0 {
		t.Errorf("commands = %d, %v; want one without what it runs", len(list), err)
	}
}

func TestActiveJobsOfCallerAreBounded(t *testing.T) {
	s := newWorld(t).start(t, 1)
	var ids []string
	for range 100 {
		ids = append(ids, s.create(t, bob, v1.JobRequest{Exec: v1.Exec{Command: "hold"}}).ID)
	}
	if _, err := s.Jobs.Create(t.Context(), bob, v1.JobRequest{Exec: v1.Exec{Command: "x"}}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("job 101: %v, want ResourceExhausted", err)
	}
	other := s.create(t, eve, v1.JobRequest{Exec: v1.Exec{Command: "hold"}})
	for _, id := range ids {
		if _, err := s.Jobs.Cancel(t.Context(), bob, id); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Jobs.Cancel(t.Context(), eve, other.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		s.await(t, bob, id)
	}
	s.await(t, eve, other.ID)
}
