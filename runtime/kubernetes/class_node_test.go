//go:build kubernetes

package kubernetes

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
	"github.com/sandbox-orchestrator/orchestrator/runtime/runtimetest"
)

// gvisorProfile is our filter for gVisor in the node's seccomp directory.
const gvisorProfile = "gvisor.json"

// newRuntimeClass makes a RuntimeClass with this handler of the node's containerd.
func newRuntimeClass(t *testing.T, name, handler string) {
	t.Helper()
	a := admin(t)
	const to = "/apis/node.k8s.io/v1/runtimeclasses"
	body := `{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{"name":"` + name + `"},"handler":"` + handler + `"}`
	err := a.core.Post().AbsPath(to).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(t.Context()).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.core.Delete().AbsPath(to, name).Do(context.Background()).Error(); err != nil {
			t.Error(err)
		}
	})
}

// gvisorOptions are options with class gvisor. It skips the test if the node has no gVisor.
func gvisorOptions(t *testing.T) Options {
	t.Helper()
	given(t, "KUBERNETES_GVISOR")
	o := options(t, newNamespace(t, "baseline"))
	profile, err := ocispec.GVisorSeccompJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(given(t, "KUBERNETES_DIR"), "kubelet", "seccomp", gvisorProfile), profile, 0o644); err != nil {
		t.Fatal(err)
	}
	newRuntimeClass(t, "gvisor", "runsc")
	o.Classes = map[runtime.Class]string{runtime.ClassGVisor: "gvisor"}
	o.GVisorSeccompProfile = gvisorProfile
	return o
}

// TestGVisorSuite runs the suite's checks on class gvisor that depend on the driver.
func TestGVisorSuite(t *testing.T) {
	o := gvisorOptions(t)
	runtimetest.Run(t, runtimetest.Factory{
		Name: "kubernetes-gvisor", Class: runtime.ClassGVisor, SkipKernelChecks: true,
		Image: sandboxImage(t), Entrypoint: []string{entrypoint},
		Open: func(t *testing.T, _ string) runtime.Driver {
			t.Helper()
			return nodeDriver{open(t, o), t}
		},
		HostPID: func(t *testing.T, id string) int {
			t.Helper()
			a := admin(t)
			a.namespace = o.Namespace
			p, err := a.get(bounded(t), podName(id))
			if err != nil {
				t.Fatal(err)
			}
			return sentryOf(t, string(p.UID))
		},
		RemoveImage: func(t *testing.T, i runtime.Image) {
			t.Helper()
			ctr(t, "images", "remove", inNode(i))
		},
	})
}

// sentryOf returns the host process that is gVisor's kernel of a pod.
func sentryOf(t *testing.T, pod string) int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		cgroup, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(cgroup), pod) {
			continue
		}
		dir := filepath.Dir(file)
		command, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if pid, _ := strconv.Atoi(filepath.Base(dir)); err == nil && strings.HasPrefix(string(command), "runsc-sandbox") {
			return pid
		}
	}
	t.Fatalf("no process of gVisor found for pod %s, want one", pod)
	return 0
}

func TestRuntimeClassThatIsNotGVisorIsRefused(t *testing.T) {
	o := gvisorOptions(t)
	newRuntimeClass(t, "only-runc", "runc")
	o.Classes[runtime.ClassGVisor], o.PodPids = "only-runc", 0
	d := opened(t, o)
	spec := specOf(t)
	spec.Class = runtime.ClassGVisor
	_, err := d.Create(bounded(t), spec)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "not of class gvisor: its kernel is Linux") {
		t.Errorf("Create with runc as class gvisor: %v, want FailedPrecondition that names the kernel", err)
	}
	o.Classes = map[runtime.Class]string{runtime.ClassVM: "only-runc"}
	vm := opened(t, o)
	spec.Class = runtime.ClassVM
	if _, err := vm.Create(bounded(t), spec); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "not of class vm") {
		t.Errorf("Create with runc as class vm: %v, want FailedPrecondition", err)
	}
}

func TestMissingRuntimeClassIsNamed(t *testing.T) {
	o := options(t, newNamespace(t, "baseline"))
	o.Classes = map[runtime.Class]string{runtime.ClassGVisor: "nowhere"}
	_, err := New(bounded(t), o)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "kubernetes.classes.gvisor") ||
		!strings.Contains(err.Error(), `"nowhere" not found`) {
		t.Errorf("New with a RuntimeClass that does not exist: %v, want FailedPrecondition that names it", err)
	}
	// A user who may not look for it learns at the first pod.
	config, err := clientcmd.LoadFromFile(o.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	grantPods(t, o.Namespace, "blind")
	config.AuthInfos["admin"].Impersonate = "blind"
	o.Kubeconfig = write(t, config)
	d := opened(t, o)
	spec := specOf(t)
	spec.Class, spec.Limits.Pids = runtime.ClassGVisor, runtime.MinPids
	d.opts.PodPids = 0
	began := time.Now()
	if _, err := d.Create(bounded(t), spec); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("Create with a RuntimeClass that does not exist: %v, want FailedPrecondition that names it", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("reported after %s, want at most 10 s", took)
	}
}

// grantPods gives a user the permissions on pods of docs/examples/kubernetes.yaml.
func grantPods(t *testing.T, namespace, user string) {
	t.Helper()
	grant(t, namespace, user, "pods", `{"apiGroups":[""],"resources":["pods"],"verbs":["create","get","list","watch","delete"]},
		{"apiGroups":[""],"resources":["pods/exec"],"verbs":["create","get"]}`)
}

// grant gives a user a role with these rules.
func grant(t *testing.T, namespace, user, role, rules string) {
	t.Helper()
	a := admin(t)
	for resource, body := range map[string]string{
		"roles": `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"name":"` + role + `"},"rules":[` + rules + `]}`,
		"rolebindings": `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"name":"` + role + `"},
			"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"` + role + `"},
			"subjects":[{"kind":"User","apiGroup":"rbac.authorization.k8s.io","name":"` + user + `"}]}`,
	} {
		to := "/apis/rbac.authorization.k8s.io/v1/namespaces/" + namespace + "/" + resource
		if err := a.core.Post().AbsPath(to).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(bounded(t)).Error(); err != nil {
			t.Fatal(err)
		}
	}
}
