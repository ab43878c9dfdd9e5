package kubernetes

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

var _ runtime.Queuer = (*Driver)(nil)

// CheckQueue returns an error that names the missing permissions for Jobs. Once it has found them,
// it does not ask again.
func (d *Driver) CheckQueue(ctx context.Context) error {
	if d.jobs.allowed.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	err := d.api.checkPermissions(ctx, d.opts.jobPermissions())
	if err == nil {
		d.jobs.allowed.Store(true)
	}
	return err
}

// Submit creates a Job whose pod is the sandbox. A queue's name is its label for Kueue, and the Job
// is suspended then.
func (d *Driver) Submit(ctx context.Context, spec runtime.Spec, q runtime.Queue) error {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return err
	}
	if err := spec.RefuseUserNamespace(); err != nil {
		return err
	}
	if err := d.checkSpec(spec); err != nil {
		return err
	}
	asked := d.jobOf(spec, q)
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), postTime, errSlow)
	defer cancel()
	failpoint.Hit("kubernetes.submit.intent")
	d.jobs.made.Store(spec.ID, nil)
	err := d.api.createJob(ctx, asked)
	if apierrors.IsAlreadyExists(err) {
		return d.takeOverJob(ctx, asked.Name, spec.ID)
	}
	failpoint.Hit("kubernetes.submit.created")
	return d.api.failed(ctx, "create Job "+asked.Name, err)
}

// AwaitStart waits until the cluster has started the pod of a Job and its guest answers. The bound
// of a start counts from when a node has taken the pod.
func (d *Driver) AwaitStart(ctx context.Context, spec runtime.Spec, waiting func(string)) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	s := newSandbox(d, spec.ID)
	if err := d.hold(s); err != nil {
		return nil, err
	}
	err := s.awaitQueue(ctx, spec, waiting)
	<-s.turn
	if err != nil {
		s.forget()
		d.release(s)
		return nil, err
	}
	return s, nil
}

// awaitQueue is AwaitStart with the lock held.
func (s *Sandbox) awaitQueue(ctx context.Context, spec runtime.Spec, waiting func(string)) error {
	p, err := s.awaitPod(ctx, spec.Owner, waiting)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, errSlow)
	defer cancel()
	if p.Status.Phase == corev1.PodSucceeded {
		return fmt.Errorf("kubernetes: sandbox %s has ended before it was used: %w", s.id, errdefs.ErrUnavailable)
	}
	if p, err = s.d.takeOver(ctx, p); err != nil {
		return err
	}
	s.pod, s.uid, s.epoch, s.ofOther = p.Name, p.UID, epochOf(p), true
	if err := checkUnchanged(s.d.podOf(spec), p); err != nil {
		return fmt.Errorf("kubernetes: sandbox %s: %w", s.id, err)
	}
	if err := s.awaitStart(ctx, spec); err != nil {
		return err
	}
	s.attach()
	return s.answers(ctx)
}

// awaitPod waits until a node has taken the pod of a Job.
func (s *Sandbox) awaitPod(ctx context.Context, owner string, waiting func(string)) (*corev1.Pod, error) {
	for last := ""; ; {
		p := s.d.pods.get(s.name)
		if p != nil && taken(p) {
			waiting("")
			return p, nil
		}
		j, err := s.d.job(ctx, owner, s.name)
		switch {
		case errdefs.IsNotFound(err):
			return nil, fmt.Errorf("kubernetes: sandbox %s: %w: %w", s.id, endedError{errJobDeleted}, errdefs.ErrNotFound)
		case errdefs.IsFailedPrecondition(err): // denied: another try does not help
			return nil, fmt.Errorf("kubernetes: sandbox %s: %w", s.id, err)
		case err != nil: // the cluster goes on without us
			s.d.log.Debug("failed to read the state of a Job; will retry", "job", s.name, "error", err)
		default:
			if err := jobEnd(j); err != nil {
				return nil, fmt.Errorf("kubernetes: sandbox %s: %w", s.id, err)
			}
			if why := held(j, p); why != last {
				waiting(why)
				last = why
			}
		}
		poll, cancel := context.WithTimeout(ctx, jobPoll)
		_ = s.d.pods.wait(poll, s.name, "", func(p *corev1.Pod) bool { return p != nil && taken(p) }) // the loop looks again
		cancel()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("kubernetes: sandbox %s: %w: %w", s.id, errdefs.ErrUnavailable, context.Cause(ctx))
		}
	}
}

// taken reports whether a node has taken the pod, and nobody has asked for its end.
func taken(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && (p.Spec.NodeName != "" || p.Status.Phase != corev1.PodPending)
}

// findPod returns the pod of a sandbox by its name or, if something else has created it, by its
// label.
// NotFound: there is none.
func (d *Driver) findPod(ctx context.Context, id string) (*corev1.Pod, error) {
	p, err := d.api.get(ctx, podName(id))
	if !apierrors.IsNotFound(err) {
		return p, err
	}
	list, failed := d.api.list(ctx, ofID(id))
	if failed != nil {
		return nil, failed
	}
	var found *corev1.Pod
	for i := range list.Items {
		p := &list.Items[i]
		if madeByOther(p) && (found == nil || found.CreationTimestamp.Before(&p.CreationTimestamp)) {
			found = p
		}
	}
	if found != nil {
		return found, nil
	}
	return nil, err
}
