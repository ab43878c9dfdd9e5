package kubernetes

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
)

// Why a sandbox has ended. [Sandbox.Open] returns them.
var (
	errOOM      = errors.New("its first process was killed for exceeding the memory limit")
	errEvicted  = errors.New("its node evicted the pod")
	errDeadline = errors.New("the pod reached its deadline (kubernetes.deadline)")
	errDeleted  = errors.New("the pod was deleted")
	errEnded    = errors.New("the sandbox has ended")
	errNodeLost = errors.New("its node was lost")
	errReleased = errors.New("the sandbox was released")
)

// running reports whether the pod's sandbox runs and nobody has asked for its end.
func running(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodRunning && started(p)
}

// started reports whether the container of the sandbox runs.
func started(p *corev1.Pod) bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == containerName {
			return c.State.Running != nil
		}
	}
	return false
}

// ending returns why a pod's sandbox has ended, or nil if it may still run. A nil pod is one that
// is gone.
func ending(p *corev1.Pod) error {
	if p == nil {
		return errDeleted
	}
	var end *corev1.ContainerStateTerminated
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == containerName {
			end = c.State.Terminated
		}
	}
	if end == nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
		return nil
	}
	why := errEnded
	switch {
	case p.Status.Reason == "Evicted":
		why = errEvicted
	case p.Status.Reason == "DeadlineExceeded":
		why = errDeadline
	case p.Status.Reason == "NodeLost":
		why = errNodeLost
	case end != nil && end.Reason == "OOMKilled":
		why = errOOM
	case disruption(p) != nil:
		why = disruption(p)
	case p.DeletionTimestamp != nil:
		why = errDeleted
	}
	if p.Status.Message != "" {
		why = fmt.Errorf("%w: %s", why, p.Status.Message)
	}
	return why
}

// progress reports whether a new pod runs. The error is final: waiting would not help.
func progress(p *corev1.Pod) (ready bool, err error) {
	if p == nil || p.DeletionTimestamp != nil {
		return false, fmt.Errorf("the pod was deleted while it started: %w", errdefs.ErrUnavailable)
	}
	for _, c := range append(append([]corev1.ContainerStatus(nil), p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...) {
		if err := stuck(c); err != nil {
			return false, err
		}
	}
	switch p.Status.Phase {
	case corev1.PodFailed, corev1.PodSucceeded:
		return false, failedStart(p)
	case corev1.PodRunning:
		return started(p), nil
	default: // it may still start
		return false, nil
	}
}

// stuck returns why a container will not start, or nil.
func stuck(c corev1.ContainerStatus) error {
	if t := c.State.Terminated; t != nil && (t.ExitCode != 0 || c.Name == containerName) {
		said := strings.TrimSpace(t.Message)
		if said == "" {
			said = fmt.Sprintf("%s, exit code %d", t.Reason, t.ExitCode)
		}
		if t.Reason == "OOMKilled" {
			said = "killed for exceeding limits.memory"
		}
		return fmt.Errorf("container %s ended while the sandbox started: %s: %w", c.Name, said, errdefs.ErrFailedPrecondition)
	}
	w := c.State.Waiting
	if w == nil {
		return nil
	}
	switch w.Reason {
	case "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable":
		return fmt.Errorf("image %s cannot be pulled: %s: %s: %w", c.Image, w.Reason, w.Message, errdefs.ErrNotFound)
	case "InvalidImageName":
		return fmt.Errorf("image %q: invalid reference: %s: %w", c.Image, w.Message, errdefs.ErrFailedPrecondition)
	case "CreateContainerConfigError",
		"CreateContainerError",
		"RunContainerError",
		"PreCreateHookError",
		"PostStartHookError":
		return fmt.Errorf("container %s cannot start: %s: %s: %w", c.Name, w.Reason, w.Message, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// failedStart returns the error of a pod that ended before its container was seen to run.
func failedStart(p *corev1.Pod) error {
	var class error = errdefs.ErrFailedPrecondition
	switch reason := p.Status.Reason; {
	case strings.HasPrefix(reason, "OutOf"),
		reason == "Evicted",
		reason == "Preempting",
		reason == "NodeShutdown",
		reason == "Terminated":
		class = errdefs.ErrResourceExhausted // another node, or the same one later, may have room
	}
	return fmt.Errorf("the pod failed: %s: %s: %w", p.Status.Reason, p.Status.Message, class)
}

// state describes an unfinished start, for the error of a Create that ran out of time.
func state(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "no node takes it: " + c.Reason + ": " + c.Message
		}
	}
	for _, c := range append(append([]corev1.ContainerStatus(nil), p.Status.InitContainerStatuses...), p.Status.ContainerStatuses...) {
		if w := c.State.Waiting; w != nil && w.Reason != "" {
			return fmt.Sprintf("container %s is waiting: %s %s", c.Name, w.Reason, w.Message)
		}
	}
	return "phase " + string(p.Status.Phase)
}

// checkUnchanged returns an error if a webhook of the cluster made the pod less confined than asked
// for.
func checkUnchanged(asked, got *corev1.Pod) error {
	a, g := &asked.Spec, &got.Spec
	changed := func(what string) error {
		return fmt.Errorf(
			"the cluster changed %s of the pod, probably by a mutating webhook: exclude namespace %s from it: %w",
			what,
			got.Namespace,
			errdefs.ErrFailedPrecondition,
		)
	}
	if err := checkUserNamespace(asked, got); err != nil {
		return err
	}
	switch {
	case len(g.Containers) != len(a.Containers), len(g.InitContainers) != len(a.InitContainers):
		return changed("the containers")
	case len(g.Volumes) != len(a.Volumes):
		return changed("the volumes")
	case g.HostNetwork, g.HostPID, g.HostIPC, g.ShareProcessNamespace != nil && *g.ShareProcessNamespace:
		return changed("the namespaces")
	case !reflect.DeepEqual(g.SecurityContext, a.SecurityContext):
		return changed("the security context")
	}
	for i, c := range append(append([]corev1.Container(nil), g.InitContainers...), g.Containers...) {
		want := append(append([]corev1.Container(nil), a.InitContainers...), a.Containers...)[i]
		switch {
		case !reflect.DeepEqual(c.SecurityContext, want.SecurityContext):
			return changed("the security context of container " + c.Name)
		case !reflect.DeepEqual(c.Command, want.Command),
			len(c.Env) != len(want.Env),
			len(c.EnvFrom) != 0,
			c.Image != want.Image:
			return changed("image, command or environment of container " + c.Name)
		case len(c.VolumeMounts) != len(want.VolumeMounts), len(c.VolumeDevices) != 0:
			return changed("the mounts of container " + c.Name)
		}
	}
	return nil
}
