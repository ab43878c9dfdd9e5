//go:build kubernetes

package kubernetes

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// show returns the first command of a job.
func (s *service) show(t *testing.T, job string) v1.JobResult {
	t.Helper()
	var list v1.List[v1.JobResult]
	text := s.do(t, "job", "show", job, "--output", "json")
	if err := json.Unmarshal([]byte(text), &list); err != nil || len(list.Items) != 1 {
		t.Fatalf("job show = %+v, %v; want one command", list, err)
	}
	return list.Items[0]
}

// awaitCommand waits until the first command of a job is as wanted.
func (s *service) awaitCommand(t *testing.T, job, what string, want func(v1.JobResult) bool) v1.JobResult {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		got := s.show(t, job)
		if want(got) {
			return got
		}
		if time.Now().After(end) {
			t.Fatalf("command = %+v, want it %s; jobs: %s", got, what, s.do(t, "job", "ls"))
		}
	}
}

func held(r v1.JobResult) bool    { return r.State == "queued" && r.QueuedBy == "cluster" }
func running(r v1.JobResult) bool { return r.State == "running" }
func ended(r v1.JobResult) bool   { return r.State == "ended" }

// newJob starts a job and returns its id.
func (s *service) newJob(t *testing.T, args ...string) string {
	t.Helper()
	var j v1.Job
	text := s.do(t, append([]string{"--output", "json", "job", "run"}, args...)...)
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		t.Fatalf("job run = %q: %v", text, err)
	}
	return j.ID
}

// clusterJobs returns the names of the Jobs.
func (c cluster) clusterJobs(t *testing.T) []string {
	t.Helper()
	return strings.Fields(c.do(t, "get", "jobs", "--namespace", namespace, "--output", "name"))
}

// resumeJob un-suspends the only Job, as Kueue does.
func (c cluster) resumeJob(t *testing.T) {
	t.Helper()
	jobs := c.clusterJobs(t)
	if len(jobs) != 1 {
		t.Fatalf("Jobs = %v, want one", jobs)
	}
	c.do(t, "patch", jobs[0], "--namespace", namespace, "--type", "merge", "--patch", `{"spec":{"suspend":false}}`)
}

// awaitNoJobs waits until neither a Job nor a pod of one exists.
func (c cluster) awaitNoJobs(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		left := c.do(t, "get", "jobs,pods", "--namespace", namespace, "--output", "name", "--selector",
			"orchestrator.id,batch.kubernetes.io/job-name") + strings.Join(c.clusterJobs(t), " ")
		if left == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("of the Jobs, %s is left", left)
		}
	}
}

// nativeService returns a cluster with a service that has started.
func nativeService(t *testing.T) (cluster, *service) {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	loadSandboxImage(t)
	c := newCluster(t, dir)
	s := newService(t, dir, c.user)
	s.start(t)
	t.Cleanup(func() {
		s.kill(t)
		s.do(t, "down")
	})
	s.awaitReady(t)
	return c, s
}

// TestNativeJob runs one service through the ways of a native job.
func TestNativeJob(t *testing.T) {
	c, s := nativeService(t)
	t.Run("SameRecordAsOrdinary", func(t *testing.T) { sameRecord(t, c, s) })
	t.Run("HeldOverKill", func(t *testing.T) {
		job := s.newJob(t, "--suspend", "--", "echo", "resumed")
		s.awaitCommand(t, job, "held", held)
		if got := s.do(t, "job", "ls"); !strings.Contains(got, "queued by cluster") {
			t.Errorf("job ls = %s, want queued by cluster", got)
		}
		s.kill(t)
		s.start(t)
		s.awaitReady(t)
		s.awaitCommand(t, job, "held again", held)
		c.resumeJob(t)
		s.do(t, "job", "wait", job)
		if got := s.do(t, "job", "logs", job, "0"); got != "resumed" {
			t.Errorf("job logs = %q, want resumed", got)
		}
		c.awaitNoJobs(t)
	})
	t.Run("RunningOverKill", func(t *testing.T) {
		job := s.newJob(t, "--native", "-c", "echo one; until test -e /tmp/go; do sleep 0.1; done; echo two")
		box := s.awaitCommand(t, job, "running", running).SandboxID
		s.kill(t)
		s.start(t)
		s.awaitReady(t)
		s.do(t, "exec", box, "--", "touch", "/tmp/go")
		s.do(t, "job", "wait", job)
		if got := s.do(t, "job", "logs", job, "0"); got != "one\ntwo" {
			t.Errorf("job logs = %q, want one and two", got)
		}
		c.awaitNoJobs(t)
	})
	t.Run("CancelledWhileHeld", func(t *testing.T) {
		job := s.newJob(t, "--suspend", "--", "true")
		s.awaitCommand(t, job, "held", held)
		s.do(t, "job", "cancel", job)
		if r := s.awaitCommand(t, job, "ended", ended); r.Outcome != "cancelled" {
			t.Errorf("command = %+v, want it cancelled", r)
		}
		c.awaitNoJobs(t)
	})
	t.Run("PodDeleted", func(t *testing.T) {
		job := s.newJob(t, "--native", "--", "sleep", "1000")
		box := s.awaitCommand(t, job, "running", running).SandboxID
		c.do(t, "delete", "pods", "--namespace", namespace, "--selector", "orchestrator.id="+box, "--wait=false")
		r := s.awaitCommand(t, job, "ended", ended).Attempts[0].Result
		if r.Ending != "sandbox_lost" || !strings.Contains(r.Detail, "the pod was deleted") {
			t.Errorf("result = %+v, want sandbox_lost with the reason", r)
		}
		c.awaitNoJobs(t)
	})
}

// sameRecord compares the records, output and artifacts of a native job with those of an ordinary
// one.
func sameRecord(t *testing.T, c cluster, s *service) {
	t.Helper()
	record := func(flags ...string) (r v1.JobResult, logs, artifacts string) {
		t.Helper()
		job := s.newJob(t, append(flags, "--artifact", "*.txt", "-c", "echo out; echo err >&2; echo file >a.txt; exit 3")...)
		r = s.awaitCommand(t, job, "ended", ended)
		for i := range r.Attempts {
			a := &r.Attempts[i]
			a.SandboxID, a.StartedAt, a.EndedAt = "", nil, time.Time{}
			a.Result.ID, a.Result.DurationMS, a.Result.Usage = "", 0, v1.Usage{}
		}
		artifacts = s.do(t, "job", "artifacts", job)
		return r, s.do(t, "job", "logs", job, "0") + s.do(t, "job", "logs", "--stderr", job, "0"), artifacts
	}
	want, wantLogs, wantFiles := record()
	got, logs, files := record("--native")
	if diff := cmp.Diff(want, got); diff != "" || want.Attempts[0].Result.ExitCode != 3 {
		t.Errorf("record of the native job (-ordinary +native):\n%s", diff)
	}
	if logs != wantLogs || logs != "outerr" || files != wantFiles || !strings.Contains(files, "a.txt") {
		t.Errorf("output and artifacts = %q %q, want %q %q", logs, files, wantLogs, wantFiles)
	}
	c.awaitNoJobs(t)
}

// TestNativeJobSurvivesCrashes kills the service at each step of a native command. After the next
// start the command has to run once, and nothing may be left.
func TestNativeJobSurvivesCrashes(t *testing.T) {
	faults := given(t, "BIN_FAULTS")
	c, s := nativeService(t)
	ordinary := s.bin
	for _, point := range []string{
		"scheduler.queue.intent", "kubernetes.submit.intent", "kubernetes.submit.created", "scheduler.queue.submitted",
		"scheduler.queue.started", "jobs.attempt.leased", "jobs.attempt.sent",
	} {
		t.Run(point, func(t *testing.T) {
			s.kill(t)
			s.bin, s.env = faults, []string{"ORCHESTRATOR_FAULT=" + point}
			s.start(t)
			s.awaitReady(t)
			args := []string{"--native", "--idempotency-key", point, "--", "echo", "ran"}
			// The service may die before it has answered: the key finds the job.
			_, _ = output(s.bin, append([]string{"--config", s.config, "job", "run"}, args...)...)
			if err := s.cmd.Wait(); err == nil {
				t.Error("the service ended without an error, want it killed")
			}
			s.bin, s.env = ordinary, nil
			s.start(t)
			s.awaitReady(t)
			job := s.newJob(t, args...)
			s.do(t, "job", "wait", job)
			if r := s.show(t, job); r.Outcome != "succeeded" || len(r.Attempts) != 1 {
				t.Errorf("command = %+v, want it succeeded with one attempt", r)
			}
			if got := s.do(t, "job", "logs", job, "0"); got != "ran" {
				t.Errorf("job logs = %q, want ran", got)
			}
			c.awaitNoJobs(t)
		})
	}
}
