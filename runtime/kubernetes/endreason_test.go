package kubernetes

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// disrupted is a running pod that the control plane has deleted.
func disrupted(reason string) *corev1.Pod {
	return &corev1.Pod{Status: corev1.PodStatus{
		Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{
			{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: reason, Message: "its words"},
		},
	}}
}

func TestDisruptionIsTheReasonOfAnEnd(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]error{
		"EvictionByEvictionAPI":  errDrained,
		"PreemptionByScheduler":  errPreempted,
		"TerminationByKubelet":   errEvicted,
		"DeletionByPodGC":        errNodeLost,
		"DeletionByTaintManager": errTainted,
		"Unknown":                errDeleted,
	} {
		running := disrupted(reason)
		if err := ending(running); err != nil {
			t.Errorf("ending of a pod that still runs (%s) = %v, want nil", reason, err)
		}
		ended := disrupted(reason)
		ended.Status.Phase = corev1.PodFailed
		if err := ending(ended); !errors.Is(err, want) {
			t.Errorf("ending(%s) = %v, want %v", reason, err, want)
		}
		var w endWatch
		if w.seen(running) || !w.seen(nil) || !errors.Is(w.why, want) {
			t.Errorf("end of a pod that disappeared after %s = %v, want %v", reason, w.why, want)
		}
	}
	var w endWatch
	if w.seen(waiting("")) || !w.seen(nil) || !errors.Is(w.why, errDeleted) {
		t.Errorf("end of a pod that disappeared = %v, want %v", w.why, errDeleted)
	}
}

// TestReasonOfPodThatDisappearsAtOnce lets the reason and the deletion arrive before the sandbox
// looks.
func TestReasonOfPodThatDisappearsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &podCache{entries: map[string]*podEntry{}}
		running, lost := waiting(""), disrupted("DeletionByPodGC")
		running.Name, running.UID = "p", "u"
		lost.Name, lost.UID = "p", "u"
		c.add(running)
		var w endWatch
		ended := make(chan error)
		go func() { ended <- c.wait(t.Context(), "p", "u", w.seen) }()
		synctest.Wait()
		c.mu.Lock()
		c.update(lost, false)
		c.update(lost, true)
		c.mu.Unlock()
		if err := <-ended; err != nil || !errors.Is(w.why, errNodeLost) {
			t.Errorf("wait = %v with reason %v, want %v", err, w.why, errNodeLost)
		}
	})
}

func TestEndReasonIsOneShortLine(t *testing.T) {
	t.Parallel()
	s := newSandbox(testDriver(), "sandbox-1")
	if got := s.EndReason(); got != "" {
		t.Errorf("EndReason while it runs = %q, want none", got)
	}
	s.stop(fmt.Errorf("%w: two\nlines %s", errEvicted, strings.Repeat("x", 2*maxReason)))
	got := s.EndReason()
	if !strings.HasPrefix(got, errEvicted.Error()+": two lines x") || len(got) > maxReason+len("…") {
		t.Errorf("EndReason = %q, want one line of at most %d bytes", got, maxReason)
	}
	released := newSandbox(testDriver(), "sandbox-2")
	released.stop(errReleased)
	if got := released.EndReason(); got != "" {
		t.Errorf("EndReason after Release = %q, want none", got)
	}
	err := fmt.Errorf("adopt: %w: %w", endedError{errOOM}, errdefs.ErrNotFound)
	if got := runtime.EndReasonIn(err); got != errOOM.Error() {
		t.Errorf("EndReasonIn(%v) = %q, want %q", err, got, errOOM)
	}
}
