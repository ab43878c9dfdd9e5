package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// epochs returns the annotations of a new pod that say who manages it.
func (d *Driver) epochs() map[string]string {
	if d.opts.Epoch == 0 {
		return nil
	}
	return map[string]string{annotationEpoch: strconv.FormatInt(d.opts.Epoch, 10)}
}

// checkEpoch returns an error if a newer process manages the object.
func (d *Driver) checkEpoch(kind string, object metav1.Object) error {
	if d.opts.Epoch == 0 || epochOf(object) <= d.opts.Epoch {
		return nil
	}
	return d.superseded(fmt.Errorf("%s %s belongs to a newer process with epoch %d; this one has epoch %d",
		kind, object.GetName(), epochOf(object), d.opts.Epoch))
}

// superseded reports that a pod or a guest has refused this process for a newer one. It returns an
// error about this sandbox that a retry does not change.
func (d *Driver) superseded(why error) error {
	if d.opts.Superseded != nil {
		d.opts.Superseded(why)
	}
	return fmt.Errorf("kubernetes: %w: %w", why, errdefs.ErrFailedPrecondition)
}

// checkGuest reports a refusal by a guest that has seen a newer process.
func (d *Driver) checkGuest(err error) {
	if refused, ok := errors.AsType[*guest.Error](err); ok && refused.Field == wire.FieldEpoch && d.opts.Epoch != 0 {
		_ = d.superseded(err) // the caller has the error
	}
}

// takeOver records this process' epoch in a pod, so that older processes cannot delete it, and
// returns the pod. Without an epoch it changes nothing.
func (d *Driver) takeOver(ctx context.Context, p *corev1.Pod) (*corev1.Pod, error) {
	for name := p.Name; ; {
		if err := d.checkEpoch("pod", p); err != nil {
			return nil, err
		}
		if d.opts.Epoch == 0 || epochOf(p) == d.opts.Epoch {
			return p, nil
		}
		got := new(corev1.Pod)
		err := annotate(ctx, d.api.core, "pods", p, d.epochs()).Into(got)
		if !apierrors.IsConflict(err) {
			return got, d.api.failed(ctx, "record the epoch in pod "+name, err)
		}
		if p, err = d.api.get(ctx, name); err != nil {
			return nil, d.api.failed(ctx, "look for pod "+name, err)
		}
	}
}

// delete asks for the deletion of a pod, of which it takes the last known state. With an epoch, it
// deletes only a state of the pod in which no newer process manages it. It succeeds if the pod is
// gone.
func (d *Driver) delete(ctx context.Context, p *corev1.Pod) error {
	name, uid, grace := p.Name, p.UID, int64(graceSeconds)
	o := metav1.DeleteOptions{GracePeriodSeconds: &grace, Preconditions: &metav1.Preconditions{UID: &uid}}
	for {
		if d.opts.Epoch != 0 && p.ResourceVersion != "" {
			if err := d.checkEpoch("pod", p); err != nil {
				return err
			}
			o.Preconditions.ResourceVersion = &p.ResourceVersion
		}
		err := d.api.delete(ctx, name, o)
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err):
			return d.api.failed(ctx, "delete pod "+name, err)
		case o.Preconditions.ResourceVersion == nil:
			return nil // the name belongs to another pod by now
		}
		p, err = d.api.get(ctx, name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return d.api.failed(ctx, "look for pod "+name, err)
		case p.UID != uid:
			return nil
		}
	}
}

// annotate returns the result of adding annotations to an object of a resource, such as "pods". It
// fails with a conflict if the object has changed.
func annotate(
	ctx context.Context, c *rest.RESTClient, resource string, object metav1.Object, annotations map[string]string,
) rest.Result {
	return patchMeta(ctx, c, resource, object, nil, annotations)
}

// patchMeta is annotate for labels, too.
func patchMeta(
	ctx context.Context, c *rest.RESTClient, resource string, object metav1.Object, labels, annotations map[string]string,
) rest.Result {
	return c.Patch(types.MergePatchType).Namespace(object.GetNamespace()).Resource(resource).Name(object.GetName()).
		Body(metaPatch(object, labels, annotations)).Do(ctx)
}

// metaPatch returns a merge patch that adds labels and annotations to this state of an object.
func metaPatch(object metav1.Object, labels, annotations map[string]string) []byte {
	patch, err := json.Marshal(map[string]any{"metadata": struct {
		ResourceVersion string            `json:"resourceVersion"`
		Labels          map[string]string `json:"labels,omitempty"`
		Annotations     map[string]string `json:"annotations,omitempty"`
	}{object.GetResourceVersion(), labels, annotations}})
	if err != nil {
		panic(err) // strings can be encoded
	}
	return patch
}

// fencedOpener opens streams on which requests carry an epoch.
type fencedOpener struct {
	guest.Opener
	epoch int64
}

// Epoch implements guest.Fenced.
func (f fencedOpener) Epoch() int64 { return f.epoch }
