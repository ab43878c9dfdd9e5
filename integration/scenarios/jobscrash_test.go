//go:build integration && faults

package scenarios

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestJobsSurviveCrashes kills the service at each step of a job. After the next start the job has
// to end, and each command has to have run once, which the commands note in a workspace.
func TestJobsSurviveCrashes(t *testing.T) { //nolint:tparallel // the subtests share a server
	t.Parallel()
	s := harness.New(t,
		harness.Options{Runtime: "oci", Bin: harness.Need(t, harness.EnvFaults), Config: onDemand, Seed: &seed})
	tested := []string{
		"jobs.create.inputs", "jobs.create.recorded",
		"jobs.attempt.leased", "jobs.attempt.started", "jobs.attempt.sent", "jobs.attempt.ended", "jobs.artifacts.copied",
		"jobs.attempt.recorded", "jobs.attempt.recorded:2", "jobs.end.recorded", "jobs.remove.forgotten",
	}
	stops := []string{"jobs.stop.recorded", "jobs.stop.ended"}
	for _, p := range allFailpoints(t) {
		if strings.HasPrefix(p, "jobs.") && p != "jobs.attempt.requeued" && !slices.Contains(tested, p) && !slices.Contains(stops, p) {
			t.Errorf("failpoint %s is in no list of this test, want it tested", p)
		}
	}
	for _, point := range tested {
		ok := t.Run(point, func(t *testing.T) {
			defer s.For(t)()
			testJobCrash(t, s, point)
		})
		if !ok {
			return // the next point would start with what this one left
		}
	}
	t.Run("jobs.attempt.requeued", func(t *testing.T) {
		defer s.For(t)()
		testJobCrashTwice(t, s)
	})
	for _, point := range stops {
		t.Run(point, func(t *testing.T) {
			defer s.For(t)()
			testJobCancelCrash(t, s, point)
		})
	}
}

// noting returns a job of three commands that note in a workspace that they run.
func noting(t *testing.T, s *harness.Server) v1.JobRequest {
	t.Helper()
	return v1.JobRequest{
		Workspace: workspace(t, s), Artifacts: []string{"kept"}, Files: []v1.JobFile{{Path: "/tmp/in", Content: "x"}},
		Commands: shells("cat /tmp/in; echo 0 >>log; echo k >kept", "echo 1 >>log", "echo 2 >>log"),
	}
}

func testJobCrash(t *testing.T, s *harness.Server, point string) {
	s.Start("ORCHESTRATOR_FAULT=" + point)
	r, key := noting(t, s), client.IdempotencyKey(client.NewKey())
	if j, err := s.Client.Jobs.Create(within(t), r, key); err == nil && point == "jobs.remove.forgotten" {
		awaitJob(t, s, j.ID)
		_ = s.Client.Jobs.Remove(within(t), j.ID) // the server dies here
	}
	s.Ended()
	s.Start()
	if point == "jobs.remove.forgotten" {
		if left, err := filepath.Glob(filepath.Join(s.Dir(), "jobs", "*", "*")); err != nil || len(left) > 0 {
			t.Errorf("files of a removed job: %v, %v; want none", left, err)
		}
	} else {
		assertNotedOnce(t, s, r, key)
	}
	awaitNoLease(t, s)
	s.Term()
}

// assertNotedOnce repeats the request that a crash may have interrupted, waits for its job, and
// checks that each command ran once.
func assertNotedOnce(t *testing.T, s *harness.Server, r v1.JobRequest, key client.Option) {
	t.Helper()
	j, err := s.Client.Jobs.Create(within(t), r, key)
	if err != nil {
		t.Fatal(err)
	}
	got, list := awaitJob(t, s, j.ID)
	if got.Ending != "succeeded" || len(list) != 3 {
		t.Fatalf("job = %+v %+v, want it succeeded", got, list)
	}
	for _, c := range list {
		if len(c.Attempts) != 1 {
			t.Errorf("attempts of command %d = %+v, want one", c.Index, c.Attempts)
		}
	}
	log := runIn(t, s, r.Workspace, "cat log")
	if log != "0\n1\n2\n" {
		t.Errorf("commands ran as %q, want each once and in order", log)
	}
	if out := jobOutput(t, s, j.ID, 0, ""); out != "x" {
		t.Errorf("output = %q, want x", out)
	}
	if files, err := s.Client.Jobs.Artifacts(within(t), j.ID); err != nil || len(files) != 3 {
		t.Errorf("artifacts = %v, %v; want one for each command", files, err)
	}
	if err := s.Client.Jobs.Remove(within(t), j.ID); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(filepath.Join(s.Dir(), "jobs")); err != nil || len(entries) > 0 {
		t.Errorf("directories of removed jobs: %v, %v; want none", entries, err)
	}
}

// runIn runs a shell command with a workspace.
func runIn(t *testing.T, s *harness.Server, name, command string) string {
	t.Helper()
	r := v1.Run{Exec: v1.Exec{Command: command}, Workspace: name, ReadOnly: true, WhenEmpty: "cold"}
	got, err := s.Client.Run(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	return got.Stdout
}

// testJobCrashTwice kills the service before a command is sent, and again when the next service has
// queued the command for a second time.
func testJobCrashTwice(t *testing.T, s *harness.Server) {
	s.Start("ORCHESTRATOR_FAULT=jobs.attempt.started")
	r, key := noting(t, s), client.IdempotencyKey(client.NewKey())
	_, _ = s.Client.Jobs.Create(within(t), r, key) // the server dies
	s.Ended()
	s.Begin("ORCHESTRATOR_FAULT=jobs.attempt.requeued")
	s.Ended()
	s.Start()
	assertNotedOnce(t, s, r, key)
	awaitNoLease(t, s)
	s.Term()
}

// testJobCancelCrash kills the service while it stops a job.
func testJobCancelCrash(t *testing.T, s *harness.Server, point string) {
	s.Start("ORCHESTRATOR_FAULT=" + point)
	word := uniqueWord()
	j := job(t, s, v1.JobRequest{Commands: shells("exec -a "+word+" sleep 1000", "true")})
	awaitProcesses(t, word, 1)
	_, _ = s.Client.Jobs.Cancel(within(t), j.ID) // the server dies here or soon
	s.Ended()
	s.Start()
	got, _ := awaitJob(t, s, j.ID)
	if want := (v1.JobCounts{Total: 2, Cancelled: 2}); got.Ending != "cancelled" || got.Commands != want {
		t.Errorf("job = %+v, want cancelled with %+v", got, want)
	}
	assertNoProcess(t, word)
	awaitNoLease(t, s)
	s.Term()
}
