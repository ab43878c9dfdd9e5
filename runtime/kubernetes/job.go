package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	authorizationv1 "k8s.io/api/authorization/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// labelQueue is the label with which Kueue finds the queue of a Job.
const labelQueue = "kueue.x-k8s.io/queue-name"

const (
	// jobTTL is how long the cluster keeps a Job whose pod has ended and that nobody has deleted.
	jobTTL = time.Hour
	// jobExtra is added to the deadline of a pod for its Job, so that the kubelet reports it first.
	jobExtra = time.Minute
	// jobPoll is the age of the last known state of Jobs at which they are listed again.
	jobPoll = 2 * time.Second
	// removalPoll is the first pause between two questions whether a deleted Job is gone. It doubles
	// up to jobPoll.
	removalPoll = 100 * time.Millisecond
)

// jobList has the Jobs of an owner as last listed, for all that wait for one.
type jobList struct {
	turn  chan struct{} // held while listing; guards at and items
	at    time.Time
	items map[string]*batchv1.Job

	allowed atomic.Bool // the permissions were found
	made    sync.Map    // ids of sandboxes that have Jobs, as far as this process knows
}

// jobOf returns the Job whose pod is a sandbox. Its limits have their defaults.
func (d *Driver) jobOf(spec runtime.Spec, q runtime.Queue) *batchv1.Job {
	pod := d.podOf(spec)
	one, none, suspend := int32(1), int32(0), q.Suspended || q.Name != ""
	ttl, deadline := int32(jobTTL.Seconds()), int64((d.opts.Deadline + jobExtra).Seconds())
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod.Name, Namespace: pod.Namespace, Labels: maps.Clone(pod.Labels), Annotations: maps.Clone(pod.Annotations),
		},
		Spec: batchv1.JobSpec{
			Parallelism: &one, Completions: &one, BackoffLimit: &none, Suspend: &suspend,
			ActiveDeadlineSeconds: &deadline, TTLSecondsAfterFinished: &ttl,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec,
			},
		},
	}
	if q.Name != "" {
		j.Labels[labelQueue] = q.Name
	}
	return j
}

// ownedByJob reports whether the pod is that of the Job of its sandbox.
func ownedByJob(p *corev1.Pod) bool {
	o := metav1.GetControllerOf(p)
	return o != nil && o.Kind == "Job" && o.Name == podName(p.Labels[labelID])
}

// jobPermissions returns what Jobs need in the namespace.
func (o Options) jobPermissions() (needed []authorizationv1.ResourceAttributes) {
	verbs := []string{"create", "get", "list", "delete"}
	if o.Election {
		verbs = append(verbs, "patch")
	}
	for _, verb := range verbs {
		needed = append(needed, authorizationv1.ResourceAttributes{Verb: verb, Group: batchv1.GroupName, Resource: "jobs"})
	}
	return needed
}

func (a *api) createJob(ctx context.Context, j *batchv1.Job) error {
	return a.batch.Post().Namespace(a.namespace).Resource("jobs").Body(j).Do(ctx).Error()
}

func (a *api) getJob(ctx context.Context, name string) (*batchv1.Job, error) {
	got := new(batchv1.Job)
	return got, a.batch.Get().Namespace(a.namespace).Resource("jobs").Name(name).Do(ctx).Into(got)
}

func (a *api) deleteJob(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return a.batch.Delete().Namespace(a.namespace).Resource("jobs").Name(name).Body(&o).Do(ctx).Error()
}

// listJobs lists the Jobs of an owner. A user who may not list them has none.
func (a *api) listJobs(ctx context.Context, owner string) ([]batchv1.Job, error) {
	o := metav1.ListOptions{LabelSelector: labelOwner + "=" + owner}
	got := new(batchv1.JobList)
	err := a.batch.Get().Namespace(a.namespace).Resource("jobs").VersionedParams(&o, a.params).Do(ctx).Into(got)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return got.Items, a.failed(ctx, "list Jobs", err)
}

// job returns a Job of the owner as it was at most jobPoll ago. NotFound: it does not exist.
func (d *Driver) job(ctx context.Context, owner, name string) (*batchv1.Job, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, askTime, errSlow)
	defer cancel()
	if j, err := d.listedJob(ctx, owner, name); j != nil || err != nil {
		return j, err
	}
	j, err := d.api.getJob(ctx, name) // it may be newer than the list
	return j, d.api.failed(ctx, "look for Job "+name, err)
}

// listedJob returns a Job from a list that is at most jobPoll old, or nil. One caller at a time
// lists, and the others wait for that.
func (d *Driver) listedJob(ctx context.Context, owner, name string) (*batchv1.Job, error) {
	select {
	case d.jobs.turn <- struct{}{}:
		defer func() { <-d.jobs.turn }()
	case <-ctx.Done():
		return nil, d.api.failed(ctx, "list Jobs", ctx.Err())
	}
	if time.Since(d.jobs.at) < jobPoll {
		return d.jobs.items[name], nil
	}
	list, err := d.api.listJobs(ctx, owner)
	if err != nil {
		return nil, err
	}
	d.jobs.at, d.jobs.items = time.Now(), map[string]*batchv1.Job{}
	for i := range list {
		d.jobs.items[list[i].Name] = &list[i]
	}
	return d.jobs.items[name], nil
}

// takeOverJob records this process' epoch in a Job, so that older processes cannot delete it.
func (d *Driver) takeOverJob(ctx context.Context, name, id string) error {
	for {
		j, err := d.api.getJob(ctx, name)
		if err != nil {
			return d.api.failed(ctx, "look for Job "+name, err)
		}
		if j.Labels[labelID] != id {
			return refused("Job %s is not that of a sandbox: delete it", name)
		}
		if err := d.checkEpoch("Job", j); err != nil {
			return err
		}
		if d.opts.Epoch == 0 || epochOf(j) == d.opts.Epoch {
			return nil
		}
		err = annotate(ctx, d.api.batch, "jobs", j, d.epochs()).Error()
		if !apierrors.IsConflict(err) {
			return d.api.failed(ctx, "record the epoch in Job "+name, err)
		}
	}
}

// removeJob deletes the Job of a sandbox, if it has one, and waits until the Job is gone. Its pods
// may be left if something else has deleted the Job. With an epoch, removeJob deletes only a state
// of the Job in which no newer process manages it.
func (d *Driver) removeJob(ctx context.Context, id string) error {
	name := podName(id)
	for pause := removalPoll; ; pause = min(2*pause, jobPoll) {
		j, err := d.api.getJob(ctx, name)
		_, made := d.jobs.made.Load(id)
		switch {
		case apierrors.IsForbidden(err) && !made: // who may not see Jobs has none
			return nil
		case apierrors.IsNotFound(err):
			d.jobs.made.Delete(id)
			return nil
		case err != nil:
			return d.api.failed(ctx, "look for Job "+name, err)
		case j.Labels[labelID] != id:
			return nil // a Job of somebody else
		}
		if j.DeletionTimestamp == nil {
			if err := d.deleteJob(ctx, j); err != nil {
				return err
			}
			failpoint.Hit("kubernetes.destroy.deleted")
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("kubernetes: Job %s was deleted, but its pod has not ended: %w: %w",
				name, errdefs.ErrUnavailable, context.Cause(ctx))
		}
	}
}

// deleteJob asks for the deletion of a Job after its pods. A Job that has changed or is gone is no
// error.
func (d *Driver) deleteJob(ctx context.Context, j *batchv1.Job) error {
	if err := d.checkEpoch("Job", j); err != nil {
		return err
	}
	foreground := metav1.DeletePropagationForeground
	o := metav1.DeleteOptions{PropagationPolicy: &foreground, Preconditions: &metav1.Preconditions{UID: &j.UID}}
	if d.opts.Epoch != 0 {
		o.Preconditions.ResourceVersion = &j.ResourceVersion
	}
	err := d.api.deleteJob(ctx, j.Name, o)
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return d.api.failed(ctx, "delete Job "+j.Name, err)
}

// errJobDeleted reports that something else has deleted a Job before its sandbox was used.
var errJobDeleted = errors.New("its Job was deleted in the cluster")

// jobEnd returns why a Job will not start its sandbox, or nil.
func jobEnd(j *batchv1.Job) error {
	if j.DeletionTimestamp != nil {
		return fmt.Errorf("%w: %w", endedError{errJobDeleted}, errdefs.ErrNotFound)
	}
	for _, c := range j.Status.Conditions {
		if (c.Type == batchv1.JobFailed || c.Type == batchv1.JobComplete) && c.Status == corev1.ConditionTrue {
			return fmt.Errorf("its Job has ended before it was used: %s %s: %w", c.Type, c.Reason, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// held describes why the cluster has not started the sandbox of a Job.
func held(j *batchv1.Job, p *corev1.Pod) string {
	switch {
	case j.Spec.Suspend != nil && *j.Spec.Suspend && j.Labels[labelQueue] != "":
		return "it waits in the cluster's queue " + j.Labels[labelQueue]
	case j.Spec.Suspend != nil && *j.Spec.Suspend:
		return "Job " + j.Name + " is suspended"
	case p == nil:
		return "the cluster has not created its pod"
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "no node has taken its pod: " + c.Reason
		}
	}
	return "no node has taken its pod"
}
