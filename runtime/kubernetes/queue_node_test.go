//go:build kubernetes

package kubernetes

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// submit gives a suspended sandbox to the cluster and removes it at the end of the test.
func submit(t *testing.T, d *Driver, spec runtime.Spec) {
	t.Helper()
	if err := d.CheckQueue(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if err := d.Submit(bounded(t), spec, runtime.Queue{Suspended: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := d.Remove(ctx, spec.ID); err != nil {
			t.Error(err)
		}
	})
}

// awaited is the result of AwaitStart.
type awaited struct {
	sandbox runtime.Sandbox
	err     error
}

// awaitHeld calls AwaitStart in the background and returns when the cluster holds the sandbox.
func awaitHeld(t *testing.T, d *Driver, spec runtime.Spec) <-chan awaited {
	t.Helper()
	held, done := make(chan string, 16), make(chan awaited, 1)
	go func() {
		sb, err := d.AwaitStart(bounded(t), spec, func(why string) { held <- why })
		done <- awaited{sb, err}
	}()
	select {
	case why := <-held:
		if !strings.HasSuffix(why, "is suspended") {
			t.Errorf("reason of the wait = %q, want that the Job is suspended", why)
		}
	case got := <-done:
		t.Fatalf("AwaitStart = %+v before the Job was resumed", got)
	}
	return done
}

// resume un-suspends a Job, as Kueue does.
func resume(t *testing.T, d *Driver, id string) {
	t.Helper()
	err := admin(t).batch.Patch(types.MergePatchType).Namespace(d.opts.Namespace).Resource("jobs").Name(podName(id)).
		Body([]byte(`{"spec":{"suspend":false}}`)).Do(bounded(t)).Error()
	if err != nil {
		t.Fatal(err)
	}
}

// jobGone fails the test unless neither the Job nor a pod of the sandbox exists.
func jobGone(t *testing.T, d *Driver, id string) {
	t.Helper()
	if _, err := d.api.getJob(bounded(t), podName(id)); !apierrors.IsNotFound(err) {
		t.Errorf("get of the removed Job = %v, want NotFound", err)
	}
	if list, err := d.api.list(bounded(t), ofID(id)); err != nil || len(list.Items) > 0 {
		t.Errorf("pods of the removed Job = %d, %v; want none", len(list.Items), err)
	}
}

// TestSuspendedJobStartsWhenResumed waits for a Job that another driver has submitted, and adopts
// its pod with a third one.
func TestSuspendedJobStartsWhenResumed(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	first, spec := opened(t, o), specOf(t)
	submit(t, first, spec)
	found, err := first.List(bounded(t), spec.Owner)
	if err != nil || len(found) != 1 || found[0].ID != spec.ID || found[0].Running {
		t.Errorf("List = %+v, %v; want the suspended sandbox", found, err)
	}
	second := opened(t, o)
	submit(t, second, spec)
	done := awaitHeld(t, second, spec)
	resume(t, second, spec.ID)
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	if _, err := guest.New(got.sandbox).Ping(bounded(t)); err != nil {
		t.Errorf("Ping of the started sandbox = %v, want nil", err)
	}
	if err := got.sandbox.Release(); err != nil {
		t.Fatal(err)
	}
	third := opened(t, o)
	sb, err := third.Adopt(bounded(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.New(sb).Ping(bounded(t)); err != nil {
		t.Errorf("Ping of the adopted sandbox = %v, want nil", err)
	}
	began := time.Now()
	if err := sb.Destroy(bounded(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("Destroy took %v", time.Since(began))
	jobGone(t, third, spec.ID)
}

func TestSuspendedJobIsRemoved(t *testing.T) {
	t.Parallel()
	d, spec := opened(t, options(t, newNamespace(t, "baseline"))), specOf(t)
	submit(t, d, spec)
	if err := d.Remove(bounded(t), spec.ID); err != nil {
		t.Fatal(err)
	}
	jobGone(t, d, spec.ID)
}

func TestDeletedJobEndsTheWait(t *testing.T) {
	t.Parallel()
	d, spec := opened(t, options(t, newNamespace(t, "baseline"))), specOf(t)
	submit(t, d, spec)
	done := awaitHeld(t, d, spec)
	if err := d.api.deleteJob(bounded(t), podName(spec.ID), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := <-done; !errdefs.IsNotFound(got.err) || runtime.EndReasonIn(got.err) != errJobDeleted.Error() {
		t.Errorf("AwaitStart of a deleted Job = %v, want NotFound with the reason", got.err)
	}
}

func TestDeletedPodOfJobIsReported(t *testing.T) {
	t.Parallel()
	d, spec := opened(t, options(t, newNamespace(t, "baseline"))), specOf(t)
	submit(t, d, spec)
	done := awaitHeld(t, d, spec)
	resume(t, d, spec.ID)
	got := <-done
	if got.err != nil {
		t.Fatal(got.err)
	}
	sb := got.sandbox.(*Sandbox)
	if err := d.api.delete(bounded(t), sb.pod, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sb.Done():
	case <-bounded(t).Done():
		t.Fatal("Done stays open after the pod was deleted")
	}
	if why := sb.EndReason(); !strings.Contains(why, errDeleted.Error()) {
		t.Errorf("EndReason = %q, want %q", why, errDeleted)
	}
}

// TestUserWithoutJobsIsTold uses the permissions that are enough for pods.
func TestUserWithoutJobsIsTold(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	grantPods(t, o.Namespace, "nojobs")
	config, err := clientcmd.LoadFromFile(given(t, "KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["admin"].Impersonate = "nojobs"
	o.Kubeconfig = write(t, config)
	d := opened(t, o)
	if err := d.CheckQueue(bounded(t)); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "create jobs, get jobs, list jobs, delete jobs") {
		t.Errorf("CheckQueue = %v, want FailedPrecondition with the missing verbs", err)
	}
	if found, err := d.List(bounded(t), "owner-of-faults"); err != nil || len(found) > 0 {
		t.Errorf("List = %v, %v; want none", found, err)
	}
	if err := d.Remove(bounded(t), "no-such-sandbox"); err != nil {
		t.Errorf("Remove of nothing = %v, want nil", err)
	}
}

// TestOlderDriverCannotRemoveJob has a newer driver wait for the Job of an older one.
func TestOlderDriverCannotRemoveJob(t *testing.T) {
	t.Parallel()
	o := options(t, newNamespace(t, "baseline"))
	older, reports := fenced(t, o, 1)
	spec := specOf(t)
	if err := older.Submit(bounded(t), spec, runtime.Queue{Suspended: true}); err != nil {
		t.Fatal(err)
	}
	newer, _ := fenced(t, o, 2)
	submit(t, newer, spec)
	if err := older.Remove(bounded(t), spec.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove by the older driver = %v, want FailedPrecondition", err)
	}
	if err := older.Submit(bounded(t), spec, runtime.Queue{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Submit by the older driver = %v, want FailedPrecondition", err)
	}
	if len(reports) == 0 {
		t.Error("the older driver did not report that it was superseded")
	}
	if j, err := newer.api.getJob(bounded(t), podName(spec.ID)); err != nil || epochOf(j) != 2 || j.DeletionTimestamp != nil {
		t.Errorf("Job = %+v, %v; want it with epoch 2", j, err)
	}
}
