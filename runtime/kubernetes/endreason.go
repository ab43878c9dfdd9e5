package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// maxReason bounds the cluster's words in the reason of an end, in bytes.
const maxReason = 512

// Why the control plane has a pod deleted. It says so in a condition before the deletion.
var (
	errDrained   = errors.New("the pod was evicted by a request to the API server, such as a drain of its node")
	errPreempted = errors.New("the scheduler preempted the pod for one of a higher priority")
	errTainted   = errors.New("the pod does not tolerate a taint of its node")
)

// disruption returns why the control plane or the kubelet ends a pod, or nil. For a deletion that a
// user or another program requested, the API server does not say who did.
func disruption(p *corev1.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.DisruptionTarget || c.Status != corev1.ConditionTrue {
			continue
		}
		switch c.Reason {
		case "EvictionByEvictionAPI":
			return errDrained
		case corev1.PodReasonPreemptionByScheduler:
			return errPreempted
		case corev1.PodReasonTerminationByKubelet:
			return errEvicted
		case "DeletionByPodGC":
			return errNodeLost
		case "DeletionByTaintManager":
			return fmt.Errorf("%w: %s", errTainted, c.Message)
		}
		return fmt.Errorf("%w: %s: %s", errDeleted, c.Reason, c.Message)
	}
	return nil
}

// endWatch follows a pod to its end. It remembers the last state, since a pod that is deleted
// without a grace period disappears with its reason.
type endWatch struct {
	last *corev1.Pod
	why  error
}

// seen takes the next state of the pod and reports whether the sandbox has ended; why is set then.
func (w *endWatch) seen(p *corev1.Pod) bool {
	if w.why = ending(p); p == nil && w.last != nil {
		w.why = errors.Join(disruption(w.last)) // nil stays nil
		if w.why == nil {
			w.why = errDeleted
		}
	}
	w.last = p
	return w.why != nil
}

// EndReason returns why the pod has ended, or "" while it may run and after Release.
func (s *Sandbox) EndReason() string { return endReason(context.Cause(s.ctx)) }

func endReason(why error) string {
	if why == nil || errors.Is(why, errReleased) {
		return ""
	}
	return clip.Text(strings.Join(strings.Fields(why.Error()), " "), maxReason)
}

// endedError is the error of an Adopt that found a pod whose sandbox has ended.
type endedError struct{ why error }

func (e endedError) Error() string { return e.why.Error() }

// EndReason returns why the pod has ended.
func (e endedError) EndReason() string { return endReason(e.why) }
