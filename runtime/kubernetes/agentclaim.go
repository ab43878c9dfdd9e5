package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// agentSilence is how long a claim may have no status: the controller writes one within a second.
	agentSilence = 10 * time.Second
	// agentPatience is how long a claim may have a status that says why it gets no sandbox. The
	// controller's view of the cluster may be behind.
	agentPatience = 5 * time.Second
	// agentPoll is how often the status of a claim without a pod is read.
	agentPoll = time.Second
)

// claimedPod reports whether the pod is that of the SandboxClaim of a sandbox.
func claimedPod(p *corev1.Pod) bool {
	return p.Labels[labelID] != "" && p.Annotations[annotationProvider] == ProviderAgentSandbox
}

// madeByOther reports whether something else has created the pod for an object with the name of its
// sandbox: a Job or a SandboxClaim.
func madeByOther(p *corev1.Pod) bool { return ownedByJob(p) || claimedPod(p) }

// claimOf returns the SandboxClaim of a sandbox.
func (s *agentSandboxes) claimOf(spec runtime.Spec, template string) *unstructured.Unstructured {
	p := s.d.podOf(spec)
	ref := "sandboxTemplateRef"
	if s.version != agentAlpha {
		ref = "warmPoolRef"
	}
	// The pod has the same deadline, so that its kubelet reports it first.
	end := time.Now().Add(s.d.opts.Deadline + jobExtra).UTC().Format(time.RFC3339)
	return s.object("SandboxClaim", p.ObjectMeta, map[string]any{
		ref:         map[string]any{"name": template},
		"lifecycle": map[string]any{"shutdownTime": end, "shutdownPolicy": "Delete"},
	})
}

// claim gets a pod from agent-sandbox, and returns it and the one that was asked for. The caller
// must destroy the sandbox after an error if s.ofOther is set.
func (s *Sandbox) claim(ctx context.Context, spec runtime.Spec) (asked, got *corev1.Pod, err error) {
	a, err := s.d.agents(ctx)
	if err != nil {
		return nil, nil, err
	}
	template, err := a.ensureTemplate(ctx, spec)
	if err != nil {
		return nil, nil, err
	}
	post, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), postTime, errSlow)
	defer stop()
	claim, err := a.of(agentClaims).Create(post, a.claimOf(spec, template), metav1.CreateOptions{})
	if err != nil {
		return nil, nil, s.d.api.failed(post, "create SandboxClaim "+s.name, err)
	}
	s.ofOther = true
	failpoint.Hit("kubernetes.create.claimed")
	got, err = a.awaitPod(ctx, claim, template)
	if err != nil {
		return nil, nil, fmt.Errorf("kubernetes: sandbox %s: %w", s.id, err)
	}
	got, err = a.take(ctx, got, spec)
	return s.d.agentPodOf(spec), got, err
}

// take records in a pod which sandbox it is, so that the watch sees it and this process finds it
// again. The API server refuses it for a state that has changed, and it is tried again.
func (s *agentSandboxes) take(ctx context.Context, p *corev1.Pod, spec runtime.Spec) (*corev1.Pod, error) {
	for name := p.Name; ; {
		if id := p.Labels[labelID]; id != "" && id != spec.ID {
			return nil, fmt.Errorf("kubernetes: pod %s belongs to sandbox %s: %w", name, id, errdefs.ErrUnavailable)
		}
		own := s.d.podOf(spec)
		got := new(corev1.Pod)
		err := patchMeta(ctx, s.d.api.core, "pods", p, own.Labels, own.Annotations).Into(got)
		if !apierrors.IsConflict(err) {
			return got, s.d.api.failed(ctx, "take pod "+name, err)
		}
		if p, err = s.d.api.get(ctx, name); err != nil {
			return nil, s.d.api.failed(ctx, "look for pod "+name, err)
		}
	}
}

// awaitPod waits until a claim has a pod.
func (s *agentSandboxes) awaitPod(ctx context.Context, claim *unstructured.Unstructured, template string) (*corev1.Pod, error) {
	tick := time.NewTicker(agentPoll)
	defer tick.Stop()
	var last error
	for began := time.Now(); ; {
		p, err := s.watchPod(ctx, claim.GetUID(), tick.C)
		if p != nil {
			return p, nil
		}
		if ctx.Err() != nil {
			if last == nil {
				last = errors.New("it has no pod")
			}
			return nil, fmt.Errorf("SandboxClaim %s: %w: %w: %w", claim.GetName(), last, errdefs.ErrUnavailable, context.Cause(ctx))
		}
		if errdefs.IsFailedPrecondition(err) {
			return nil, err
		}
		now, err := s.of(agentClaims).Get(ctx, claim.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("SandboxClaim %s was deleted while the sandbox started: %w", claim.GetName(), errdefs.ErrUnavailable)
		case err != nil: // the API server may be away
			continue
		}
		var final bool
		if last, final = claimState(now, time.Since(began)); final {
			s.forgetTemplate(template)
			return nil, last
		}
	}
}

// watchPod returns the pod of a claim, or nil when the next tick comes or the watch ends.
func (s *agentSandboxes) watchPod(ctx context.Context, claim types.UID, tick <-chan time.Time) (*corev1.Pod, error) {
	w, err := s.d.api.watch(ctx, metav1.ListOptions{LabelSelector: labelClaim + "=" + string(claim)})
	if err != nil {
		select { // do not ask in a loop
		case <-tick:
		case <-ctx.Done():
		}
		return nil, s.d.api.failed(ctx, "watch pods", err)
	}
	defer w.Stop()
	for {
		select {
		case <-tick:
			return nil, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case event, ok := <-w.ResultChan():
			if !ok {
				return nil, nil
			}
			p, isPod := event.Object.(*corev1.Pod)
			if isPod && event.Type != watch.Deleted && p.DeletionTimestamp == nil {
				return p, nil
			}
		}
	}
}

// claimState returns why a claim has no pod, and whether that is final after this time.
func claimState(claim *unstructured.Unstructured, age time.Duration) (why error, final bool) {
	conditions, _, _ := unstructured.NestedSlice(claim.Object, "status", "conditions") // a wrong type counts as none
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		if condition["type"] != "Ready" || condition["status"] == "True" {
			continue
		}
		reason, message := condition["reason"], fmt.Sprint(condition["message"])
		why := fmt.Errorf("SandboxClaim %s gets no pod: %v: %s: %w", claim.GetName(), reason, message, claimClass(message))
		switch reason {
		case "ClaimExpired", "SandboxExpired":
			return why, true
		case "DependenciesNotReady", "SandboxNotReady":
			return why, false
		default:
			return why, age >= agentPatience
		}
	}
	return fmt.Errorf("SandboxClaim %s has no status after %s: does the controller of agent-sandbox run, with --extensions?: %w",
		claim.GetName(), agentSilence, errdefs.ErrUnavailable), age >= agentSilence
}

// claimClass returns the class of an error that the controller has written into a status.
func claimClass(message string) error {
	switch {
	case strings.Contains(message, "exceeded quota"), strings.Contains(message, "failed quota"):
		return errdefs.ErrResourceExhausted
	case strings.Contains(message, "forbidden"), strings.Contains(message, "admission webhook"), strings.Contains(message, "not found"):
		return errdefs.ErrFailedPrecondition
	}
	return errdefs.ErrUnavailable
}

// listAgentClaims lists the SandboxClaims of an owner. A cluster or a user without them has none.
func (d *Driver) listAgentClaims(ctx context.Context, owner string) ([]unstructured.Unstructured, error) {
	if !d.opts.usesAgents() {
		return nil, nil
	}
	a, err := d.agents(ctx)
	if err != nil {
		return nil, err
	}
	list, err := a.of(agentClaims).List(ctx, metav1.ListOptions{LabelSelector: labelOwner + "=" + owner})
	if err != nil {
		return nil, d.api.failed(ctx, "list SandboxClaims", err)
	}
	return list.Items, nil
}

// takeOverAgentClaim records this process' epoch in a SandboxClaim, so that older processes cannot
// delete it.
func (d *Driver) takeOverAgentClaim(ctx context.Context, name string) error {
	a, err := d.agents(ctx)
	if err != nil {
		return err
	}
	for {
		c, err := a.of(agentClaims).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return d.api.failed(ctx, "look for SandboxClaim "+name, err)
		}
		if err := d.checkEpoch("SandboxClaim", c); err != nil {
			return err
		}
		if d.opts.Epoch == 0 || epochOf(c) == d.opts.Epoch {
			return nil
		}
		_, err = a.of(agentClaims).Patch(ctx, name, types.MergePatchType,
			metaPatch(c, nil, d.epochs()), metav1.PatchOptions{})
		if !apierrors.IsConflict(err) {
			return d.api.failed(ctx, "record the epoch in SandboxClaim "+name, err)
		}
	}
}

// removeAgentClaim deletes the SandboxClaim of a sandbox, if it has one, and waits until it is
// gone, which is after its pod. With an epoch, it deletes only a state in which no newer process
// manages the claim.
func (d *Driver) removeAgentClaim(ctx context.Context, id string) error {
	a, err := d.agents(ctx)
	if errdefs.IsFailedPrecondition(err) {
		return nil // the cluster has no claims
	}
	if err != nil {
		return err
	}
	name, foreground := podName(id), metav1.DeletePropagationForeground
	for pause := removalPoll; ; pause = min(2*pause, jobPoll) {
		c, err := a.of(agentClaims).Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return d.api.failed(ctx, "look for SandboxClaim "+name, err)
		case c.GetLabels()[labelID] != id:
			return nil // a claim of somebody else
		}
		if c.GetDeletionTimestamp() == nil {
			if err := d.checkEpoch("SandboxClaim", c); err != nil {
				return err
			}
			uid, version := c.GetUID(), c.GetResourceVersion()
			o := metav1.DeleteOptions{PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &uid}}
			if d.opts.Epoch != 0 {
				o.Preconditions.ResourceVersion = &version
			}
			err := a.of(agentClaims).Delete(ctx, name, o)
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return d.api.failed(ctx, "delete SandboxClaim "+name, err)
			}
			failpoint.Hit("kubernetes.destroy.deleted")
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("kubernetes: SandboxClaim %s was deleted, but its pod has not ended: %w: %w",
				name, errdefs.ErrUnavailable, context.Cause(ctx))
		}
	}
}
