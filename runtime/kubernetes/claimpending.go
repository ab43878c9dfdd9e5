package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// claimInterval is how often the claim of a starting pod is looked at. claimPatience is how long
	// it may be pending for a reason that can pass, such as a volume that is released just now.
	claimInterval = time.Second
	claimPatience = 5 * time.Second
	// noProvisioner is the provisioner of storage classes whose volumes are made by hand.
	noProvisioner = "kubernetes.io/no-provisioner"
)

// checkStorageClasses returns an error that names a storage class which the cluster lacks.
func (d *Driver) checkStorageClasses(ctx context.Context) error {
	all := d.opts.workspaces()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if name := all[key].StorageClass; name != "" {
			if _, err := d.storageClass(ctx, key, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// storageClass returns the provisioner of a storage class, or "" without the permission to get it:
// storage classes are not in a namespace. key is the setting that names it.
func (d *Driver) storageClass(ctx context.Context, key, name string) (provisioner string, err error) {
	text, err := d.api.core.Get().AbsPath("/apis/storage.k8s.io/v1/storageclasses", name).Do(ctx).Raw()
	switch {
	case apierrors.IsNotFound(err):
		return "", noStorageClass(key, name)
	case apierrors.IsForbidden(err):
		d.log.Debug("storage class cannot be checked: permission missing: get storageclasses.storage.k8s.io", "storage_class", name)
		return "", nil
	case err != nil:
		return "", d.api.failed(ctx, "look for storage class "+name, err)
	}
	var class struct {
		Provisioner string `json:"provisioner"`
	}
	if err := json.Unmarshal(text, &class); err != nil {
		return "", fmt.Errorf("kubernetes: read storage class %s: %w: %w", name, err, errdefs.ErrUnavailable)
	}
	return class.Provisioner, nil
}

func noStorageClass(key, name string) error {
	return refused("%s.storage_class: storage class %q does not exist: create it, or use the name of an existing one", key, name)
}

// watchClaim calls found with the reason why the volume of a starting pod's claim will not come,
// until ctx ends.
func (s *Sandbox) watchClaim(ctx context.Context, spec runtime.Spec, found func(error)) {
	t := time.NewTicker(claimInterval)
	defer t.Stop()
	for began := time.Now(); ; {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
		late := time.Since(began) >= claimPatience
		err := unschedulable(s.d.pods.get(s.name), runtime.ClaimName(spec.Claim.Workspace), late)
		if err == nil {
			err = s.d.claimTrouble(ctx, spec, late)
		}
		if err != nil && ctx.Err() == nil {
			found(startError{err})
			return
		}
	}
}

// unschedulable returns why no node takes a pod because of its claim, or nil. late says that a
// reason which can pass has not.
func unschedulable(p *corev1.Pod, claim string, late bool) error {
	if p == nil {
		return nil
	}
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodScheduled || c.Status != corev1.ConditionFalse {
			continue
		}
		switch text := c.Message; {
		case strings.Contains(text, "ReadWriteOncePod access mode"):
			return fmt.Errorf("volume claim %s is used by another pod: delete that pod: %s: %w", claim, text, errdefs.ErrUnavailable)
		case late && strings.Contains(text, "didn't find available persistent volumes to bind"):
			return fmt.Errorf("volume claim %s: no volume is free: create a PersistentVolume that fits: %s: %w",
				claim, text, errdefs.ErrResourceExhausted)
		case late && (strings.Contains(text, "node affinity") || strings.Contains(text, "enough free storage")):
			return fmt.Errorf("volume claim %s: no node can have its volume: %s: %w", claim, text, errdefs.ErrUnavailable)
		}
	}
	return nil
}

// claimTrouble returns why a claim is not bound, or nil. An API server that does not answer is no
// reason: the pod's own deadline applies.
func (d *Driver) claimTrouble(ctx context.Context, spec runtime.Spec, late bool) error {
	c, err := d.api.getClaim(ctx, runtime.ClaimName(spec.Claim.Workspace))
	switch {
	case err != nil:
		return nil //nolint:nilerr // as the comment says
	case c.Status.Phase == corev1.ClaimLost:
		return lostVolume(c)
	case c.Status.Phase == corev1.ClaimBound || !late:
		return nil
	}
	key := d.workspaceKey(spec.Template)
	class := c.Spec.StorageClassName
	if class == nil || *class == "" {
		return refused("volume claim %s is pending: the cluster has no default storage class: set %s.storage_class", c.Name, key)
	}
	provisioner, err := d.storageClass(ctx, key, *class)
	switch {
	case errdefs.IsFailedPrecondition(err):
		return err
	case provisioner == noProvisioner:
		return noVolume(c, *class)
	}
	list := new(corev1.EventList)
	o := metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(c.UID)}
	if err := d.api.core.Get().Namespace(d.api.namespace).Resource("events").VersionedParams(&o, d.api.params).
		Do(ctx).Into(list); err != nil {
		return nil //nolint:nilerr // events are optional
	}
	for i := range list.Items {
		if err := provisioning(&list.Items[i], c, key, *class); err != nil {
			return err
		}
	}
	return nil
}

// noVolume returns the error of a claim whose storage class makes no volumes.
func noVolume(c *corev1.PersistentVolumeClaim, class string) error {
	return fmt.Errorf("kubernetes: volume claim %s is pending: storage class %q makes no volumes, and none is free: "+
		"create a PersistentVolume of %s with access mode %s: %w",
		c.Name, class, c.Spec.Resources.Requests.Storage(), c.Spec.AccessModes[0], errdefs.ErrResourceExhausted)
}

// provisioning returns why a volume cannot be made according to an event, or nil.
func provisioning(e *corev1.Event, c *corev1.PersistentVolumeClaim, key, class string) error {
	switch text := e.Message; {
	case e.Reason == "ProvisioningFailed" && strings.Contains(text, "storageclass") && strings.HasSuffix(text, "not found"):
		return noStorageClass(key, class)
	case e.Reason == "ProvisioningFailed":
		return fmt.Errorf("kubernetes: volume claim %s: storage class %q cannot make a volume: %s: check %s: %w",
			c.Name, class, text, key, errdefs.ErrUnavailable)
	case e.Reason == "ExternalProvisioning" && strings.Contains(text, noProvisioner):
		return noVolume(c, class)
	}
	return nil
}
