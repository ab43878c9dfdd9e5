package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// createTime bounds a Create whose caller set no deadline; undoTime bounds the undoing of one, and
// postTime the request that makes the pod, which is not cut short: its pod would appear after the
// undo.
const (
	createTime = 2 * time.Minute
	undoTime   = 30 * time.Second
	postTime   = 10 * time.Second
)

// Create makes a pod and returns when its guest has answered. If it fails, it removes the pod; List
// finds one that could not be removed. NotFound: the image cannot be pulled. ResourceExhausted: a
// quota or a full node.
func (d *Driver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	spec.Limits = spec.Limits.WithDefaults()
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	if err := spec.RefuseUserNamespace(); err != nil {
		return nil, err
	}
	if err := d.checkSpec(spec); err != nil {
		return nil, err
	}
	s := newSandbox(d, spec.ID)
	if err := d.hold(s); err != nil {
		return nil, err
	}
	err := s.create(ctx, spec)
	<-s.turn
	if err == nil {
		return s, nil
	}
	if s.uid == "" && !s.ofOther { // no pod was created
		s.forget()
		d.release(s)
		return nil, err
	}
	undo, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), undoTime, errSlow)
	defer cancel()
	return nil, errors.Join(err, s.Destroy(undo))
}

// checkSpec returns an error that names what this driver cannot enforce.
func (d *Driver) checkSpec(spec runtime.Spec) error {
	if err := d.checkClass(spec); err != nil {
		return err
	}
	if spec.Class.OrDefault() == runtime.ClassContainer && d.opts.PodPids > spec.Limits.Pids {
		return refused(
			"limits.pids is %d, but nodes allow %d processes per pod: raise limits.pids, "+
				"or lower podPidsLimit of the kubelets and kubernetes.pod_pids",
			spec.Limits.Pids,
			d.opts.PodPids,
		)
	}
	return nil
}

// create is Create with the lock held, without the undo.
func (s *Sandbox) create(ctx context.Context, spec runtime.Spec) error {
	ctx, cancel := context.WithTimeoutCause(ctx, createTime, errSlow)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("kubernetes: sandbox %s: %w: %w", s.id, errdefs.ErrUnavailable, context.Cause(ctx))
	}
	failpoint.Hit("kubernetes.create.intent")
	obtain := s.post
	if s.d.podOptions(spec.Template).Provider == ProviderAgentSandbox {
		obtain = s.claim
	}
	asked, got, err := obtain(ctx, spec)
	if err != nil {
		return err
	}
	s.pod, s.uid, s.epoch = got.Name, got.UID, s.d.opts.Epoch
	s.d.pods.add(got)
	failpoint.Hit("kubernetes.create.created")
	if err := checkUnchanged(asked, got); err != nil {
		return fmt.Errorf("kubernetes: sandbox %s: %w", s.id, err)
	}
	if err := s.awaitStart(ctx, spec); err != nil {
		return err
	}
	s.attach()
	if err := s.answers(ctx); err != nil {
		return err
	}
	failpoint.Hit("kubernetes.create.attached")
	return nil
}

// post creates the pod of a sandbox, and returns it and the one that was asked for.
func (s *Sandbox) post(ctx context.Context, spec runtime.Spec) (asked, got *corev1.Pod, err error) {
	if err := s.d.ensureClaim(ctx, spec); err != nil {
		return nil, nil, fmt.Errorf("kubernetes: sandbox %s: %w", s.id, err)
	}
	asked = s.d.podOf(spec)
	ctx, stop := context.WithTimeoutCause(context.WithoutCancel(ctx), postTime, errSlow)
	defer stop()
	got, err = s.d.api.create(ctx, asked)
	return asked, got, s.d.api.failed(ctx, "create pod "+asked.Name, err)
}

// awaitStart waits until the pod runs.
func (s *Sandbox) awaitStart(ctx context.Context, spec runtime.Spec) error {
	var (
		final error
		last  *corev1.Pod
		image = spec.Image.Ref
	)
	ctx, cancel := context.WithCancelCause(ctx)
	var events sync.WaitGroup
	events.Go(func() { s.watchEvents(ctx, image, cancel) })
	if spec.Claim != nil {
		events.Go(func() { s.watchClaim(ctx, spec, cancel) })
	}
	defer events.Wait()
	defer cancel(nil)
	err := s.d.pods.wait(ctx, s.name, s.uid, func(p *corev1.Pod) bool {
		var ready bool
		last = p
		ready, final = progress(p)
		return ready || final != nil
	})
	if final == nil && err != nil {
		final = reported(ctx)
	}
	switch {
	case final != nil:
		return fmt.Errorf("kubernetes: sandbox %s of image %s: %w", s.id, image, s.d.hint(final))
	case err != nil:
		return fmt.Errorf("kubernetes: sandbox %s of image %s did not start in time: %s: %w", s.id, image, state(last), err)
	}
	return nil
}

// answers waits until the guest answers. The guest listens only after it has checked from inside
// that the sandbox is isolated; if it is not, the guest ends the pod with the reason.
func (s *Sandbox) answers(ctx context.Context) error {
	_, err := guest.New(s).Ping(ctx)
	if err == nil {
		return nil
	}
	select {
	case <-s.done:
		// The pod's own words are better than those of the stream.
		var ended error
		_ = s.d.pods.wait(ctx, s.name, s.uid, func(p *corev1.Pod) bool {
			if p != nil {
				_, ended = progress(p)
			}
			return true
		})
		if ended != nil {
			return fmt.Errorf("kubernetes: sandbox %s: %w", s.id, s.d.hint(ended))
		}
	default:
	}
	return fmt.Errorf("kubernetes: the guest of sandbox %s does not answer: %w", s.id, err)
}

// hint adds the setting to change to the error of a guest that found a network.
func (d *Driver) hint(err error) error {
	if d.opts.Network == NetworkNone && strings.Contains(err.Error(), "not isolated") {
		return fmt.Errorf("this cluster gives pods a network: set kubernetes.network: strip: %w", err)
	}
	return err
}

// Adopt takes over a running pod. NotFound: there is none, or it has ended; Remove clears what is
// left.
func (d *Driver) Adopt(ctx context.Context, id string) (runtime.Sandbox, error) {
	if !runtime.ValidID(id) {
		return nil, fmt.Errorf("kubernetes: sandbox id %q: %w", id, errdefs.ErrInvalidArgument)
	}
	s := newSandbox(d, id)
	if err := d.hold(s); err != nil {
		return nil, err
	}
	err := s.adopt(ctx)
	<-s.turn
	if err != nil {
		s.forget()
		d.release(s)
		return nil, err
	}
	return s, nil
}

func (s *Sandbox) adopt(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	p, err := s.d.findPod(ctx, s.id)
	if err != nil {
		return s.d.api.failed(ctx, "look for sandbox "+s.id, err)
	}
	if why := ending(p); p.Labels[labelID] == s.id && why != nil {
		return fmt.Errorf("kubernetes: sandbox %s: %w: %w", s.id, endedError{why}, errdefs.ErrNotFound)
	}
	if p.Labels[labelID] != s.id || !running(p) {
		return fmt.Errorf("kubernetes: sandbox %s does not run: phase %s: %w", s.id, p.Status.Phase, errdefs.ErrNotFound)
	}
	if p, err = s.d.takeOver(ctx, p); err != nil {
		return err
	}
	switch s.ofOther = madeByOther(p); {
	case claimedPod(p):
		err = s.d.takeOverAgentClaim(ctx, s.name)
	case s.ofOther:
		s.d.jobs.made.Store(s.id, nil)
		err = s.d.takeOverJob(ctx, s.name, s.id)
	}
	if err != nil {
		return err
	}
	s.pod, s.uid, s.epoch = p.Name, p.UID, epochOf(p)
	s.d.pods.add(p)
	s.attach()
	return nil
}

// Remove destroys a sandbox by id from any state. It succeeds if nothing is left.
func (d *Driver) Remove(ctx context.Context, id string) error {
	if !runtime.ValidID(id) {
		return fmt.Errorf("kubernetes: sandbox id %q: %w", id, errdefs.ErrInvalidArgument)
	}
	if s := d.holder(id); s != nil {
		return s.Destroy(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTime, errSlow)
	defer cancel()
	return d.removeAll(ctx, id)
}

// removeAll removes the Job or the SandboxClaim of a sandbox, if it has one, and then every pod
// with its label: those that nothing else has created, and those that outlive what has created
// them.
func (d *Driver) removeAll(ctx context.Context, id string) error {
	if err := d.removeJob(ctx, id); err != nil {
		return err
	}
	if d.opts.usesAgents() {
		if err := d.removeAgentClaim(ctx, id); err != nil {
			return err
		}
	}
	for pause := time.Duration(0); ; pause = min(2*pause+removalPoll, jobPoll) {
		list, err := d.api.list(ctx, ofID(id))
		if err != nil {
			return d.api.failed(ctx, "look for sandbox "+id, err)
		}
		if len(list.Items) == 0 {
			return nil
		}
		// The template may have had a provider earlier, which would replace a pod without its claim.
		if slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return claimedPod(&p) }) {
			if err := d.removeAgentClaim(ctx, id); err != nil {
				return err
			}
		}
		for i := range list.Items {
			if err := d.remove(ctx, &list.Items[i]); err != nil {
				return err
			}
		}
		select { // the watch may be behind the list
		case <-time.After(pause):
		case <-ctx.Done(): // the next list fails
		}
	}
}

// remove deletes a pod, of which it takes the last known state, and waits until the API server has
// forgotten it. With a grace period, that is after the kubelet has reported the end of its
// containers.
func (d *Driver) remove(ctx context.Context, p *corev1.Pod) error {
	if err := d.delete(ctx, p); err != nil {
		return err
	}
	failpoint.Hit("kubernetes.destroy.deleted")
	if err := d.pods.wait(ctx, entryName(p), p.UID, func(now *corev1.Pod) bool { return now == nil }); err != nil {
		return fmt.Errorf("kubernetes: pod %s was deleted, but its node has not reported its end: %w", p.Name, err)
	}
	return nil
}
