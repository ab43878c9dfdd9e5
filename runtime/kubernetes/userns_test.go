package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestUserNamespaceIsAskedForAndChecked(t *testing.T) {
	t.Parallel()
	d := testDriver()
	if p := d.podOf(testSpec()); p.Spec.HostUsers != nil {
		t.Errorf("hostUsers = %v, want none by default", *p.Spec.HostUsers)
	}
	d.opts.Pods = map[string]PodOptions{testSpec().Template: {UserNamespaces: true}}
	asked := d.podOf(testSpec())
	if asked.Spec.HostUsers == nil || *asked.Spec.HostUsers || !slices.Contains(asked.Spec.Containers[0].Command, "--user-namespace") {
		t.Errorf("hostUsers = %v with command %q, want false and the guest's check", asked.Spec.HostUsers, asked.Spec.Containers[0].Command)
	}
	if err := checkUnchanged(asked, asked.DeepCopy()); err != nil {
		t.Errorf("checkUnchanged of the same pod = %v, want nil", err)
	}
	yes := true
	for _, hostUsers := range []*bool{nil, &yes} {
		got := asked.DeepCopy()
		got.Spec.HostUsers = hostUsers
		if err := checkUnchanged(asked, got); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "user_namespaces") {
			t.Errorf("checkUnchanged without the field = %v, want FailedPrecondition that names the setting", err)
		}
	}
	spec := testSpec()
	spec.Class, d.opts.Classes = runtime.ClassGVisor, map[runtime.Class]string{runtime.ClassGVisor: "gvisor"}
	if err := d.checkSpec(spec); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "user_namespaces") {
		t.Errorf("checkSpec with class gvisor = %v, want FailedPrecondition", err)
	}
}

func TestEventAboutUserNamespacesIsAnError(t *testing.T) {
	t.Parallel()
	e := &corev1.Event{Reason: "FailedCreatePodSandBox",
		Message: "can't set `spec.hostUsers: false`, runtime does not support user namespaces"}
	if err := trouble(e, "image:1"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "kubernetes.pod.user_namespaces") {
		t.Errorf("trouble = %v, want FailedPrecondition that names the setting", err)
	}
	e.Message = "network is not ready"
	if err := trouble(e, "image:1"); err != nil {
		t.Errorf("trouble of another failure = %v, want nil", err)
	}
}
