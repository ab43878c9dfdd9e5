package kubernetes

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	claims = "persistentvolumeclaims"
	// labelWorkspace has the id of a claim's workspace.
	labelWorkspace = "orchestrator.workspace"
	workspaceMount = "workspace"
	// workspaceFiles is the directory of the files in the volume. The root of a volume may have a
	// lost+found, and an owner that cannot be changed.
	workspaceFiles = "files"
	// MinClaimBytes is the smallest WorkspaceOptions.Bytes.
	MinClaimBytes = 1 << 20
	// removePoll is how often RemoveClaim looks whether a claim is gone.
	removePoll = 200 * time.Millisecond
)

// WorkspaceOptions configure volume claims for the workspaces of a template's leases.
type WorkspaceOptions struct {
	// StorageClass is the name of a StorageClass. Empty: the cluster's default.
	StorageClass string
	// Bytes is the size of a claim. Zero: no claims, and files travel over the stream.
	Bytes int64
	// AccessMode is ReadWriteOncePod or ReadWriteOnce. Empty means ReadWriteOncePod.
	AccessMode string
}

func (w WorkspaceOptions) accessMode() corev1.PersistentVolumeAccessMode {
	return corev1.PersistentVolumeAccessMode(cmp.Or(w.AccessMode, string(corev1.ReadWriteOncePod)))
}

// workspaces returns the options of all templates by their key of the configuration.
func (o Options) workspaces() map[string]WorkspaceOptions {
	out := map[string]WorkspaceOptions{"kubernetes.pod.workspace": o.Pod.Workspace}
	for name, p := range o.Pods {
		out["kubernetes.pods."+name+".workspace"] = p.Workspace
	}
	maps.DeleteFunc(out, func(_ string, w WorkspaceOptions) bool { return w == WorkspaceOptions{} })
	return out
}

func (o Options) hasClaims() bool { return len(o.workspaces()) > 0 }

// workspaceKey is the key of the configuration that applies to a template.
func (d *Driver) workspaceKey(template string) string {
	if _, ok := d.opts.Pods[template]; ok {
		return "kubernetes.pods." + template + ".workspace"
	}
	return "kubernetes.pod.workspace"
}

func (o Options) validateWorkspaces() error {
	all := o.workspaces()
	for _, key := range slices.Sorted(maps.Keys(all)) {
		switch w := all[key]; {
		case w.Bytes < MinClaimBytes:
			return fmt.Errorf("%s.size is %d: must be at least %d bytes: %w", key, w.Bytes, MinClaimBytes, errdefs.ErrInvalidArgument)
		case w.accessMode() != corev1.ReadWriteOncePod && w.accessMode() != corev1.ReadWriteOnce:
			return fmt.Errorf("%s.access_mode is %q: use ReadWriteOncePod or ReadWriteOnce: %w",
				key, w.AccessMode, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// ClaimBytes implements runtime.ClaimKeeper.
func (d *Driver) ClaimBytes(template string) int64 { return d.podOptions(template).Workspace.Bytes }

// claimVolume returns the volume of a claim and its mount.
func claimVolume(c runtime.Claim) (corev1.Volume, corev1.VolumeMount) {
	source := &corev1.PersistentVolumeClaimVolumeSource{ClaimName: runtime.ClaimName(c.Workspace)}
	return corev1.Volume{Name: workspaceMount, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: source}},
		corev1.VolumeMount{
			Name: workspaceMount, MountPath: runtime.WorkspaceDir, SubPath: workspaceFiles, ReadOnly: c.ReadOnly,
		}
}

// claimOf returns the claim of a new workspace. Its size is the recorded one, which the disk quota
// counts.
func (d *Driver) claimOf(spec runtime.Spec) *corev1.PersistentVolumeClaim {
	w := d.podOptions(spec.Template).Workspace
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: runtime.ClaimName(spec.Claim.Workspace), Namespace: d.opts.Namespace,
			Labels:      map[string]string{labelOwner: spec.Owner, labelWorkspace: spec.Claim.Workspace},
			Annotations: map[string]string{annotationTemplate: spec.Template},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{w.accessMode()},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(spec.Claim.Bytes, resource.BinarySI),
			}},
		},
	}
	if w.StorageClass != "" {
		c.Spec.StorageClassName = &w.StorageClass
	}
	return c
}

// ensureClaim finds or creates the claim of a sandbox's workspace. It does not wait for a volume:
// some storage classes make one only for a pod.
func (d *Driver) ensureClaim(ctx context.Context, spec runtime.Spec) error {
	if spec.Claim == nil {
		return nil
	}
	asked := d.claimOf(spec)
	got, err := d.api.getClaim(ctx, asked.Name)
	switch {
	case err == nil:
		return checkClaim(asked, got)
	case !apierrors.IsNotFound(err):
		return d.api.failed(ctx, "look for volume claim "+asked.Name, err)
	case spec.Claim.Made:
		return refused("volume claim %s not found: it was deleted with the workspace's files: remove the workspace", asked.Name)
	}
	key := d.workspaceKey(spec.Template)
	if asked.Spec.StorageClassName != nil {
		if _, err := d.storageClass(ctx, key, *asked.Spec.StorageClassName); err != nil {
			return err
		}
	}
	if err := d.api.createClaim(ctx, asked); err != nil {
		return d.api.failed(ctx, "create volume claim "+asked.Name+" ("+key+")", err)
	}
	failpoint.Hit("kubernetes.claim.created")
	return nil
}

// checkClaim returns an error if an existing claim cannot be used.
func checkClaim(asked, got *corev1.PersistentVolumeClaim) error {
	switch {
	case got.Labels[labelWorkspace] != asked.Labels[labelWorkspace]:
		return refused("volume claim %s has no label %s=%s: it belongs to something else: rename or delete it",
			got.Name, labelWorkspace, asked.Labels[labelWorkspace])
	case got.DeletionTimestamp != nil:
		return refused("volume claim %s is being deleted: remove the workspace", got.Name)
	case got.Status.Phase == corev1.ClaimLost:
		return lostVolume(got)
	}
	return nil
}

func lostVolume(c *corev1.PersistentVolumeClaim) error {
	return refused("volume claim %s has lost volume %s: restore the volume, or remove the workspace", c.Name, c.Spec.VolumeName)
}

// RemoveClaim implements runtime.ClaimKeeper. The volume's reclaim policy decides whether the
// volume is deleted, too.
func (d *Driver) RemoveClaim(ctx context.Context, workspace string) error {
	if !runtime.ValidID(workspace) {
		return fmt.Errorf("kubernetes: workspace id %q: %w", workspace, errdefs.ErrInvalidArgument)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, destroyTime, errSlow)
	defer cancel()
	name := runtime.ClaimName(workspace)
	c, err := d.api.getClaim(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return d.api.failed(ctx, "look for volume claim "+name, err)
	case c.Labels[labelWorkspace] != workspace:
		return nil // a claim of somebody else
	}
	o := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &c.UID}}
	if err := d.api.deleteClaim(ctx, name, o); err != nil && !apierrors.IsNotFound(err) {
		return d.api.failed(ctx, "delete volume claim "+name, err)
	}
	failpoint.Hit("kubernetes.claim.deleted")
	for uid := c.UID; ; {
		c, err := d.api.getClaim(ctx, name)
		switch {
		case apierrors.IsNotFound(err), err == nil && c.UID != uid:
			return nil
		case err != nil:
			return d.api.failed(ctx, "look for volume claim "+name, err)
		}
		select {
		case <-time.After(removePoll):
		case <-ctx.Done():
			return fmt.Errorf("kubernetes: volume claim %s was deleted, but is not gone: a pod may still use it: %w: %w",
				name, errdefs.ErrUnavailable, context.Cause(ctx))
		}
	}
}

func (a *api) getClaim(ctx context.Context, name string) (*corev1.PersistentVolumeClaim, error) {
	got := new(corev1.PersistentVolumeClaim)
	return got, a.core.Get().Namespace(a.namespace).Resource(claims).Name(name).Do(ctx).Into(got)
}

func (a *api) createClaim(ctx context.Context, c *corev1.PersistentVolumeClaim) error {
	return a.core.Post().Namespace(a.namespace).Resource(claims).Body(c).Do(ctx).Error()
}

func (a *api) deleteClaim(ctx context.Context, name string, o metav1.DeleteOptions) error {
	return a.core.Delete().Namespace(a.namespace).Resource(claims).Name(name).Body(&o).Do(ctx).Error()
}
