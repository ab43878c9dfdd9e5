//go:build kubernetes

package kubernetes

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// The node's containerd 1.6 has no user namespaces.
func TestUserNamespaceThatTheEngineCannotMakeIsRefused(t *testing.T) {
	o := options(t, newNamespace(t, "baseline"))
	o.Pod.UserNamespaces, o.PodPids = true, 0
	d := opened(t, o)
	spec := specOf(t)
	began := time.Now()
	_, err := d.Create(bounded(t), spec)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "kubernetes.pod.user_namespaces") {
		t.Errorf("Create with a user namespace: %v, want FailedPrecondition that names the setting", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("reported after %s, want at most 20 s", took)
	}
	t.Logf("reported after %s, with the removal of the pod: %v", time.Since(began).Round(10*time.Millisecond), err)
	if found, err := d.List(bounded(t), spec.Owner); err != nil || len(found) > 0 {
		t.Errorf("List = %v, %v; want none", found, err)
	}
}
