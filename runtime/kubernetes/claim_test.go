package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const testWorkspace = "workspace-1"

func claimDriver() *Driver {
	d := testDriver()
	d.opts.Pods = map[string]PodOptions{"default": {Workspace: WorkspaceOptions{StorageClass: "fast", Bytes: 1 << 30}}}
	return d
}

func claimSpec(readOnly bool) runtime.Spec {
	spec := testSpec()
	spec.Claim = &runtime.Claim{Workspace: testWorkspace, Bytes: 1 << 30, ReadOnly: readOnly}
	return spec
}

func TestPodHasTheClaimOfItsWorkspace(t *testing.T) {
	t.Parallel()
	d := claimDriver()
	for _, readOnly := range []bool{false, true} {
		p := d.podOf(claimSpec(readOnly))
		var claims []string
		for _, v := range p.Spec.Volumes {
			if v.PersistentVolumeClaim != nil {
				claims = append(claims, v.PersistentVolumeClaim.ClaimName)
			}
		}
		if !slices.Equal(claims, []string{"orchestrator-workspace-" + testWorkspace}) {
			t.Errorf("claims of the pod = %q, want that of the workspace", claims)
		}
		c := p.Spec.Containers[0]
		at := slices.IndexFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == runtime.WorkspaceDir })
		if m := c.VolumeMounts[at]; m.Name != workspaceMount || m.SubPath != workspaceFiles || m.ReadOnly != readOnly {
			t.Errorf("mount of the workspace = %+v, want directory %s of the claim, read-only %t", m, workspaceFiles, readOnly)
		}
		if got := strings.Contains(strings.Join(c.Command, " "), "--writable "+runtime.WorkspaceDir); got == readOnly {
			t.Errorf("the guest accepts a writable workspace: %t, want %t", got, !readOnly)
		}
		install := p.Spec.InitContainers[0]
		if !strings.Contains(strings.Join(install.Command, " "), runtime.WorkspaceDir+"=755:1000:1000") ||
			slices.ContainsFunc(install.VolumeMounts, func(m corev1.VolumeMount) bool { return m.ReadOnly }) {
			t.Errorf("install = %q with %+v, want it to set the owner of the workspace", install.Command, install.VolumeMounts)
		}
	}
	if p := d.podOf(testSpec()); slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }) {
		t.Error("a pod without a workspace has a claim")
	}
}

func TestClaimIsWhatTheTemplateAsksFor(t *testing.T) {
	t.Parallel()
	d := claimDriver()
	c := d.claimOf(claimSpec(false))
	if *c.Spec.StorageClassName != "fast" || c.Spec.AccessModes[0] != corev1.ReadWriteOncePod ||
		c.Spec.Resources.Requests.Storage().Value() != 1<<30 ||
		c.Labels[labelWorkspace] != testWorkspace || c.Labels[labelOwner] != "owner-of-1" {
		t.Errorf("claim = %+v, want class, size, one pod and labels", c)
	}
	recorded := claimSpec(false)
	recorded.Claim.Bytes = 2 << 30
	if got := d.claimOf(recorded).Spec.Resources.Requests.Storage().Value(); got != 2<<30 {
		t.Errorf("size of a claim that was recorded with %d bytes = %d, want the recorded size", 2<<30, got)
	}
	if d.ClaimBytes("default") != 1<<30 || d.ClaimBytes("other") != 0 {
		t.Errorf("ClaimBytes = %d and %d, want those of the template only", d.ClaimBytes("default"), d.ClaimBytes("other"))
	}
	d.opts.Pods["default"] = PodOptions{Workspace: WorkspaceOptions{Bytes: 1 << 30, AccessMode: "ReadWriteOnce"}}
	if c := d.claimOf(claimSpec(false)); c.Spec.StorageClassName != nil || c.Spec.AccessModes[0] != corev1.ReadWriteOnce {
		t.Errorf("claim = %+v, want the cluster's default class and the mode", c.Spec)
	}
	if err := checkClaim(c, c); err != nil {
		t.Errorf("checkClaim of the same claim = %v, want nil", err)
	}
	for name, change := range map[string]func(*corev1.PersistentVolumeClaim){
		"label":    func(c *corev1.PersistentVolumeClaim) { c.Labels = nil },
		"deletion": func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} },
		"loss":     func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost },
	} {
		got := c.DeepCopy()
		change(got)
		if err := checkClaim(c, got); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("checkClaim after %s = %v, want FailedPrecondition", name, err)
		}
	}
}

func TestClaimSettingsAreChecked(t *testing.T) {
	t.Parallel()
	base := Options{Namespace: "sandboxes", GuestImage: "guest:1"}.withDefaults()
	for want, w := range map[string]WorkspaceOptions{
		"":            {Bytes: 1 << 30},
		"size":        {StorageClass: "fast"},
		"access_mode": {Bytes: 1 << 30, AccessMode: "ReadWriteMany"},
	} {
		o := base
		o.Pods = map[string]PodOptions{"default": {Workspace: w}}
		err := o.validate()
		if want == "" && err != nil || want != "" &&
			(!errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "kubernetes.pods.default.workspace."+want)) {
			t.Errorf("validate(%+v) = %v, want an error about %q", w, err, want)
		}
	}
	o := base
	for _, p := range o.permissions() {
		if p.Resource == claims {
			t.Error("permissions for claims are needed without claims")
		}
	}
	o.Pod.Workspace.Bytes = 1 << 30
	verbs := ""
	for _, p := range o.permissions() {
		if p.Resource == claims {
			verbs += p.Verb + " "
		}
	}
	if verbs != "create get delete " {
		t.Errorf("permissions on claims = %q, want create, get and delete", verbs)
	}
}

func TestPodThatWaitsForItsVolumeSaysWhy(t *testing.T) {
	t.Parallel()
	waiting := func(text string) *corev1.Pod {
		return &corev1.Pod{Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: text},
		}}}
	}
	const (
		inUse    = "0/1 nodes are available: 1 node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode."
		none     = "0/1 nodes are available: 1 node(s) didn't find available persistent volumes to bind."
		affinity = "0/1 nodes are available: 1 node(s) didn't match PersistentVolume's node affinity."
		unbound  = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."
	)
	for _, c := range []struct {
		text string
		late bool
		is   func(error) bool
	}{
		{inUse, false, errdefs.IsUnavailable},
		{none, false, func(err error) bool { return err == nil }},
		{none, true, errdefs.IsResourceExhausted},
		{affinity, true, errdefs.IsUnavailable},
		{unbound, true, func(err error) bool { return err == nil }}, // the claim says why
	} {
		if err := unschedulable(waiting(c.text), "claim-1", c.late); !c.is(err) {
			t.Errorf("unschedulable(%q, late %t) = %v", c.text, c.late, err)
		}
	}
	claim := claimDriver().claimOf(claimSpec(false))
	for _, c := range []struct {
		reason, text string
		is           func(error) bool
	}{
		{"ProvisioningFailed", `storageclass.storage.k8s.io "fast" not found`, errdefs.IsFailedPrecondition},
		{"ProvisioningFailed", "no disks left", errdefs.IsUnavailable},
		{"ExternalProvisioning", "waiting for 'kubernetes.io/no-provisioner'", errdefs.IsResourceExhausted},
		{"ExternalProvisioning", "waiting for 'csi.example.com'", func(err error) bool { return err == nil }},
	} {
		if err := provisioning(&corev1.Event{Reason: c.reason, Message: c.text}, claim, "kubernetes.pod.workspace", "fast"); !c.is(err) {
			t.Errorf("provisioning(%s %q) = %v", c.reason, c.text, err)
		}
	}
}
