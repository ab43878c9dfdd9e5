package kubernetes

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestJobHasThePodOfASandbox(t *testing.T) {
	t.Parallel()
	d, spec := testDriver(), testSpec()
	j, pod := d.jobOf(spec, runtime.Queue{Name: "team"}), d.podOf(spec)
	if diff := cmp.Diff(pod.Spec, j.Spec.Template.Spec); diff != "" {
		t.Errorf("pod of the Job (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(pod.Labels, j.Spec.Template.Labels); diff != "" {
		t.Errorf("labels of the pod (-want +got):\n%s", diff)
	}
	s := j.Spec
	if j.Labels[labelQueue] != "team" || j.Labels[labelID] != spec.ID || !*s.Suspend || *s.Parallelism != 1 ||
		*s.Completions != 1 || *s.BackoffLimit != 0 || *s.ActiveDeadlineSeconds <= *pod.Spec.ActiveDeadlineSeconds {
		t.Errorf("Job = %+v, want it suspended in queue team, with one pod that is not retried", j)
	}
	if j := d.jobOf(spec, runtime.Queue{}); *j.Spec.Suspend || j.Labels[labelQueue] != "" {
		t.Errorf("Job without a queue = %+v, want it to start at once", j)
	}
}

// podOfJob returns a pod that a Job has created so many seconds after the first.
func podOfJob(name, uid string, seconds int64) *corev1.Pod {
	yes := true
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, UID: types.UID(uid), Labels: map[string]string{labelID: "box"},
		CreationTimestamp: metav1.NewTime(time.Unix(seconds, 0)),
		OwnerReferences:   []metav1.OwnerReference{{Kind: "Job", Name: podName("box"), Controller: &yes}},
	}}
}

func TestPodCacheHasTheNewestPodOfAJob(t *testing.T) {
	t.Parallel()
	c := &podCache{entries: map[string]*podEntry{}}
	old, next := podOfJob("a", "1", 1), podOfJob("b", "2", 2)
	for i, step := range []struct {
		pod     *corev1.Pod
		deleted bool
		want    *corev1.Pod
	}{{old, false, old}, {next, false, next}, {old, false, next}, {old, true, next}, {next, true, nil}} {
		c.mu.Lock()
		c.update(step.pod, step.deleted)
		c.mu.Unlock()
		if got := c.get(podName("box")); got != step.want {
			t.Errorf("step %d: pod of the Job = %v, want %v", i, got, step.want)
		}
	}
	if len(c.entries) > 0 {
		t.Errorf("entries = %v, want none after the pods' end", c.entries)
	}
	other := podOfJob("c", "3", 3)
	other.OwnerReferences[0].Name = "somebody"
	if name := entryName(other); name != "c" {
		t.Errorf("entry of a pod of another Job = %q, want its own name", name)
	}
}

func TestHeldJobSaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	job := func(suspend *bool, queue string) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Name: "j", Labels: map[string]string{labelQueue: queue}},
			Spec:       batchv1.JobSpec{Suspend: suspend},
		}
	}
	waiting := &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes"},
	}}}
	for _, c := range []struct {
		job  *batchv1.Job
		pod  *corev1.Pod
		want string
	}{
		{job(&yes, "team"), nil, "it waits in the cluster's queue team"},
		{job(&yes, ""), nil, "Job j is suspended"},
		{job(&no, "team"), nil, "the cluster has not created its pod"},
		{job(nil, ""), waiting, "no node has taken its pod: Unschedulable"},
	} {
		if got := held(c.job, c.pod); got != c.want {
			t.Errorf("held(%+v) = %q, want %q", c.job.Spec, got, c.want)
		}
	}
}

func TestJobEnd(t *testing.T) {
	t.Parallel()
	now := metav1.Now()
	deleted := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &now}}
	if err := jobEnd(deleted); !errdefs.IsNotFound(err) || runtime.EndReasonIn(err) == "" {
		t.Errorf("jobEnd of a deleted Job = %v, want NotFound with a reason", err)
	}
	failed := &batchv1.Job{Status: batchv1.JobStatus{Conditions: []batchv1.JobCondition{
		{Type: batchv1.JobFailed, Status: corev1.ConditionTrue, Reason: "BackoffLimitExceeded"},
	}}}
	if err := jobEnd(failed); !errdefs.IsUnavailable(err) {
		t.Errorf("jobEnd of a failed Job = %v, want Unavailable", err)
	}
	if err := jobEnd(&batchv1.Job{}); err != nil {
		t.Errorf("jobEnd of a waiting Job = %v, want nil", err)
	}
}

// serveJobs returns a driver whose API server answers requests for Jobs with a status, and has one
// pod until that is deleted.
func serveJobs(t *testing.T, status int, pod corev1.Pod) (*Driver, *atomic.Bool) {
	t.Helper()
	deleted := new(atomic.Bool)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "/jobs") {
			w.WriteHeader(status)
			return
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}}
		switch {
		case r.Method == http.MethodDelete:
			deleted.Store(strings.HasSuffix(r.URL.Path, "/"+pod.Name))
		case !deleted.Load():
			list.Items = append(list.Items, pod)
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: -1}
	a, err := newAPI(config, "default")
	if err != nil {
		t.Fatal(err)
	}
	d := newDriver(Options{Namespace: "default", GuestImage: "guest:1"}.withDefaults(), config, a)
	d.pods = &podCache{api: a, log: d.log, entries: map[string]*podEntry{}}
	return d, deleted
}

// ofJob returns a sandbox of a driver that a Job has created.
func ofJob(d *Driver, id string) *Sandbox {
	s := newSandbox(d, id)
	s.ofOther = true
	d.jobs.made.Store(id, nil)
	<-s.turn
	return s
}

// TestPodIsRemovedWithoutItsJob removes pods whose Job something else has deleted.
func TestPodIsRemovedWithoutItsJob(t *testing.T) {
	t.Parallel()
	orphan := podOfJob("orchestrator-sandbox-1-abc", "1", 1)
	orphan.OwnerReferences = nil
	for name, pod := range map[string]*corev1.Pod{
		"in background": podOfJob("orchestrator-sandbox-1-abc", "1", 1), "orphan": orphan,
	} {
		d, deleted := serveJobs(t, http.StatusNotFound, *pod)
		if err := d.Remove(t.Context(), "sandbox-1"); err != nil || !deleted.Load() {
			t.Errorf("%s: Remove = %v, pod deleted %t; want it deleted", name, err, deleted.Load())
		}
		d, deleted = serveJobs(t, http.StatusNotFound, *pod)
		if err := ofJob(d, "sandbox-1").Destroy(t.Context()); err != nil || !deleted.Load() {
			t.Errorf("%s: Destroy = %v, pod deleted %t; want it deleted", name, err, deleted.Load())
		}
	}
}

func TestForbiddenJobsAreReported(t *testing.T) {
	t.Parallel()
	d, _ := serveJobs(t, http.StatusForbidden, *podOfJob("orchestrator-sandbox-1-abc", "1", 1))
	if err := ofJob(d, "sandbox-1").Destroy(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Destroy = %v, want FailedPrecondition", err)
	}
	if err := d.Remove(t.Context(), "sandbox-1"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove of a sandbox with a Job = %v, want FailedPrecondition", err)
	}
	spec := testSpec()
	if _, err := d.AwaitStart(t.Context(), spec, func(string) {}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("AwaitStart = %v, want FailedPrecondition", err)
	}
	if err := d.Remove(t.Context(), "sandbox-2"); err != nil {
		t.Errorf("Remove of a sandbox without a Job = %v, want nil", err)
	}
}

func TestWaitForListOfJobsEndsWithContext(t *testing.T) {
	t.Parallel()
	d, _ := serveJobs(t, http.StatusNotFound, corev1.Pod{})
	d.jobs.turn <- struct{}{} // another caller lists
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := d.job(ctx, "owner", "name"); !errdefs.IsUnavailable(err) {
		t.Errorf("job = %v, want Unavailable", err)
	}
}
