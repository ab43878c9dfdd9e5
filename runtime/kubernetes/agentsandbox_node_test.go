//go:build kubernetes

package kubernetes

import (
	"context"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
)

// agentOptions returns options whose pods are from agent-sandbox, which keeps so many ready.
func agentOptions(t *testing.T, pool int32) Options {
	t.Helper()
	given(t, "KUBERNETES_AGENT_SANDBOX")
	o := options(t, newNamespace(t, "baseline"))
	o.Pod = PodOptions{Provider: ProviderAgentSandbox, WarmPool: pool}
	return o
}

// TestAgentSandboxPoolGivesItsPods claims the pod of a pool. Another driver adopts it, the pool is
// filled again, and at the end nothing is left.
func TestAgentSandboxPoolGivesItsPods(t *testing.T) {
	t.Parallel()
	o := agentOptions(t, 1)
	o.Epoch = 5
	d := opened(t, o)
	spec := specOf(t)
	spec.Limits = spec.Limits.WithDefaults()
	spec.OrphanTimeout = 2 * time.Second // a pod of the pool waits for longer
	a, err := d.agents(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	template, err := a.ensureTemplate(bounded(t), spec)
	if err != nil {
		t.Fatal(err)
	}
	awaitPool(t, a, template, 1)
	time.Sleep(2 * spec.OrphanTimeout)
	s := start(t, d, spec)
	if !strings.HasPrefix(s.pod, template+"-") {
		t.Errorf("pod of the first sandbox = %s, want one of pool %s", s.pod, template)
	}
	awaitPool(t, a, template, 1)

	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	o.Epoch = 6
	next := opened(t, o)
	adopted, err := next.Adopt(bounded(t), spec.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := guest.New(adopted).Ping(bounded(t)); err != nil {
		t.Errorf("Ping of the adopted sandbox: %v", err)
	}
	if err := d.Remove(bounded(t), spec.ID); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "newer process") {
		t.Errorf("Remove by an older process = %v, want FailedPrecondition", err)
	}
	if err := adopted.Destroy(bounded(t)); err != nil {
		t.Error(err)
	}
	if found, err := next.List(bounded(t), spec.Owner); err != nil || len(found) != 0 {
		t.Errorf("List after Destroy = %v, %v; want nothing", found, err)
	}
	if err := next.RemoveTemplates(bounded(t), spec.Owner); err != nil {
		t.Error(err)
	}
	wantNoAgentObjects(t, a)
}

// awaitPool waits until a pool has so many ready pods.
func awaitPool(t *testing.T, a *agentSandboxes, name string, want int64) {
	t.Helper()
	for ctx := bounded(t); ; time.Sleep(100 * time.Millisecond) {
		pool, err := a.of(agentPools).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status, _ := pool.Object["status"].(map[string]any)
		if got, _ := status["readyReplicas"].(int64); got == want {
			return
		}
	}
}

// wantNoAgentObjects checks that templates, pools, claims and pods disappear.
func wantNoAgentObjects(t *testing.T, a *agentSandboxes) {
	t.Helper()
	for _, resource := range agentResources() {
		if list, err := a.of(resource).List(bounded(t), metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
			t.Errorf("%s = %v, %v; want none", resource, list, err)
		}
	}
	for ctx := bounded(t); ; time.Sleep(100 * time.Millisecond) {
		list, err := a.d.api.list(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatalf("pods are left: %v", err)
		}
		if len(list.Items) == 0 {
			return
		}
	}
}

// TestAgentSandboxWithoutPermissionIsRefused names each missing verb with its resource.
func TestAgentSandboxWithoutPermissionIsRefused(t *testing.T) {
	t.Parallel()
	o := agentOptions(t, 0)
	grantPods(t, o.Namespace, "partial")
	grant(t, o.Namespace, "partial", "agents", `{"apiGroups":["`+agentGroup+`"],"resources":["sandboxtemplates","sandboxwarmpools"],
		"verbs":["create","list","patch","delete"]},{"apiGroups":["`+agentGroup+`"],"resources":["sandboxclaims"],"verbs":["create","get","list"]}`)
	config, err := clientcmd.LoadFromFile(o.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.AuthInfos["admin"].Impersonate = "partial"
	o.Kubeconfig = write(t, config)
	_, err = New(bounded(t), o)
	const want = "patch pods, patch sandboxclaims, delete sandboxclaims"
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), ": "+want+":") {
		t.Errorf("New without permissions = %v, want FailedPrecondition that names %q", err, want)
	}
}

// TestAgentSandboxThatCannotStartIsReported has claims that the controller cannot satisfy.
func TestAgentSandboxThatCannotStartIsReported(t *testing.T) {
	t.Parallel()
	t.Run("quota", func(t *testing.T) {
		t.Parallel()
		o := agentOptions(t, 0)
		limitPods(t, o.Namespace)
		wantNoSandbox(t, o, errdefs.IsResourceExhausted, "exceeded quota")
	})
	t.Run("pod security", func(t *testing.T) {
		t.Parallel()
		o := agentOptions(t, 0)
		o.Network = NetworkStrip // needs NET_ADMIN
		wantNoSandbox(t, o, errdefs.IsFailedPrecondition, "violates PodSecurity")
	})
	t.Run("no time", func(t *testing.T) {
		t.Parallel()
		o := agentOptions(t, 0)
		d := opened(t, o)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := d.Create(ctx, specOf(t)); !errdefs.IsUnavailable(err) {
			t.Errorf("Create with 10 ms = %v, want Unavailable", err)
		}
	})
}

// limitPods sets a quota that allows no pod, and waits until it applies.
func limitPods(t *testing.T, namespace string) {
	t.Helper()
	a := admin(t)
	to := "/api/v1/namespaces/" + namespace + "/resourcequotas"
	postTo(t, a, to, `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"none"},"spec":{"hard":{"pods":"0"}}}`)
	for ctx := bounded(t); ; time.Sleep(50 * time.Millisecond) {
		text, err := a.core.Get().AbsPath(to, "none").Do(ctx).Raw()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `"used":{"pods":"0"}`) {
			return
		}
	}
}

// wantNoSandbox checks the error of a Create, and that nothing is left of it.
func wantNoSandbox(t *testing.T, o Options, class func(error) bool, text string) {
	t.Helper()
	d := opened(t, o)
	spec := specOf(t)
	began := time.Now()
	_, err := d.Create(bounded(t), spec)
	if !class(err) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "SandboxClaim "+podName(spec.ID)) {
		t.Errorf("Create = %v, want an error of another class, about its claim and %q", err, text)
	}
	if took := time.Since(began); took > 4*agentPatience {
		t.Errorf("Create took %v, want the error within %v", took, 4*agentPatience)
	}
	a, err := d.agents(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.of(agentClaims).Get(bounded(t), podName(spec.ID), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("claim after a failed Create: %v, want NotFound", err)
	}
}

// TestNodeAgentSandboxControllerStopped has no controller that answers claims.
func TestNodeAgentSandboxControllerStopped(t *testing.T) {
	o := agentOptions(t, 0)
	const part = "agent-sandbox-controller"
	pid, err := strconv.Atoi(node(t, "pid", part))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Error(err)
		}
	})
	wantNoSandbox(t, o, errdefs.IsUnavailable, "no status after 10s")
}
