//go:build kubernetes

package kubernetes

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// post creates a cluster-wide object, and deletes it at the end of the test.
func post(t *testing.T, to, name, body string) {
	t.Helper()
	a := admin(t)
	if err := a.core.Post().AbsPath(to).SetHeader("Content-Type", "application/json").Body([]byte(body)).
		Do(bounded(t)).Error(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.core.Delete().AbsPath(to, name).Do(context.Background()).Error(); err != nil {
			t.Error(err)
		}
	})
}

// newStorageClass makes a storage class whose volumes are made by hand, as on a cluster without a
// provisioner.
func newStorageClass(t *testing.T, binding string) string {
	t.Helper()
	name := "test-" + uuid.NewString()[:8]
	post(t, "/apis/storage.k8s.io/v1/storageclasses", name, fmt.Sprintf(
		`{"apiVersion":"storage.k8s.io/v1","kind":"StorageClass","metadata":{"name":%q},"provisioner":%q,"volumeBindingMode":%q}`,
		name, noProvisioner, binding))
	return name
}

// newVolume makes a volume of a class in a directory of the node, and returns the directory.
func newVolume(t *testing.T, class string) string {
	t.Helper()
	dir, err := os.MkdirTemp(given(t, "KUBERNETES_DIR"), "volume")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	name := "test-" + uuid.NewString()[:8]
	post(t, "/api/v1/persistentvolumes", name, fmt.Sprintf(
		`{"apiVersion":"v1","kind":"PersistentVolume","metadata":{"name":%q},"spec":{"capacity":{"storage":"64Mi"},
		"accessModes":["ReadWriteOncePod"],"storageClassName":%q,"persistentVolumeReclaimPolicy":"Retain","hostPath":{"path":%q}}}`,
		name, class, dir))
	return dir
}

// withClaims returns options whose sandboxes can have claims of a storage class.
func withClaims(t *testing.T, class string) Options {
	t.Helper()
	o := options(t, newNamespace(t, "baseline"))
	o.Pod.Workspace = WorkspaceOptions{StorageClass: class, Bytes: 32 << 20}
	return o
}

// specWithClaim returns a sandbox with the volume of a workspace.
func specWithClaim(t *testing.T, workspace string, made bool) runtime.Spec {
	t.Helper()
	spec := specOf(t)
	spec.Claim = &runtime.Claim{Workspace: workspace, Bytes: 32 << 20, Made: made}
	return spec
}

// sh runs a script as a command of a sandbox, and returns its output. The order of what it writes
// to its two streams is not known.
func sh(t *testing.T, s runtime.Sandbox, script string) (string, int) {
	t.Helper()
	var out strings.Builder
	r, err := guest.New(s).Exec(bounded(t), wire.Command{Argv: []string{"sh", "-c", script}}, guest.IO{Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out.String()), r.ExitCode
}

func destroy(t *testing.T, s runtime.Sandbox) {
	t.Helper()
	if err := s.Destroy(bounded(t)); err != nil {
		t.Fatal(err)
	}
}

func wantReadOnly(t *testing.T, s runtime.Sandbox) {
	t.Helper()
	if out, code := sh(t, s, "cat /workspace/note"); code != 0 || out != "kept\nmore" {
		t.Errorf("read-only workspace = %q, exit code %d; want both lines", out, code)
	}
	if out, code := sh(t, s, "echo x >>/workspace/note"); code == 0 || !strings.Contains(out, "Read-only") {
		t.Errorf("write to a read-only workspace = %q, exit code %d; want it refused", out, code)
	}
}

// TestClaimKeepsFilesOverSandboxes uses one workspace in several sandboxes, adopts one of them as a
// restarted process does, and removes the workspace.
func TestClaimKeepsFilesOverSandboxes(t *testing.T) {
	for _, binding := range []string{"Immediate", "WaitForFirstConsumer"} {
		t.Run(binding, func(t *testing.T) { testClaimKeepsFiles(t, binding) })
	}
}

func testClaimKeepsFiles(t *testing.T, binding string) {
	t.Helper()
	class := newStorageClass(t, binding)
	dir := newVolume(t, class)
	o := withClaims(t, class)
	d := opened(t, o)
	workspace := uuid.NewString()
	began := time.Now()
	first := specWithClaim(t, workspace, false)
	s := start(t, d, first)
	t.Logf("a new sandbox with a new claim took %s", time.Since(began).Round(10*time.Millisecond))
	if out, code := sh(t, s, "id -u; echo kept >/workspace/note; ls -A /workspace"); code != 0 || out != "1000\nnote" {
		t.Errorf("write to the workspace = %q, exit code %d; want one file", out, code)
	}
	if text, err := os.ReadFile(dir + "/" + workspaceFiles + "/note"); err != nil || string(text) != "kept\n" {
		t.Errorf("file in the volume = %q, %v; want what was written", text, err)
	}
	// A second pod is refused by the cluster, even if the service is not the one that made it.
	second := specWithClaim(t, workspace, true)
	if _, err := d.Create(bounded(t), second); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "used by another pod") {
		t.Errorf("Create of a second writer = %v, want Unavailable", err)
	}
	if err := s.Release(); err != nil {
		t.Fatal(err)
	}
	adopted, err := opened(t, o).Adopt(bounded(t), first.ID)
	if err != nil {
		t.Fatal(err)
	}
	if out, code := sh(t, adopted, "cat /workspace/note && echo more >>/workspace/note"); code != 0 || out != "kept" {
		t.Errorf("workspace after Adopt = %q, exit code %d; want the file, writable", out, code)
	}
	destroy(t, adopted)
	reader := specWithClaim(t, workspace, true)
	reader.Claim.ReadOnly = true
	s = start(t, d, reader)
	wantReadOnly(t, s)
	destroy(t, s)
	if s := start(t, d, specOf(t)); s != nil {
		if out, _ := sh(t, s, "ls -A /workspace; stat -f -c %T /workspace"); out != "tmpfs" {
			t.Errorf("workspace of a sandbox without a claim = %q, want an empty tmpfs", out)
		}
	}
	if err := d.RemoveClaim(bounded(t), workspace); err != nil {
		t.Fatal(err)
	}
	if _, err := d.api.getClaim(bounded(t), runtime.ClaimName(workspace)); !apierrors.IsNotFound(err) {
		t.Errorf("claim after RemoveClaim: %v, want NotFound", err)
	}
	if err := d.RemoveClaim(bounded(t), workspace); err != nil {
		t.Errorf("second RemoveClaim = %v, want nil", err)
	}
	if _, err := d.Create(bounded(t), second); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "not found") {
		t.Errorf("Create with a claim that somebody deleted = %v, want FailedPrecondition", err)
	}
}

// TestClaimWithoutVolumeIsReported checks that each reason is typed, and known within seconds.
func TestClaimWithoutVolumeIsReported(t *testing.T) {
	fails := func(t *testing.T, d *Driver, is func(error) bool, want string) {
		t.Helper()
		began := time.Now()
		spec := specWithClaim(t, uuid.NewString(), false)
		if _, err := d.Create(bounded(t), spec); !is(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("Create = %v, want a typed error with %q", err, want)
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("reported after %s, want at most 20 s", took)
		}
		if found, err := d.List(bounded(t), spec.Owner); err != nil || len(found) > 0 {
			t.Errorf("List = %v, %v; want none", found, err)
		}
		if err := d.RemoveClaim(bounded(t), spec.Claim.Workspace); err != nil {
			t.Error(err)
		}
	}
	for _, binding := range []string{"Immediate", "WaitForFirstConsumer"} {
		t.Run("no volume, "+binding, func(t *testing.T) {
			fails(t, opened(t, withClaims(t, newStorageClass(t, binding))), errdefs.IsResourceExhausted, "create a PersistentVolume")
		})
	}
	t.Run("quota", func(t *testing.T) {
		o := withClaims(t, newStorageClass(t, "Immediate"))
		limitClaims(t, o.Namespace)
		fails(t, opened(t, o), errdefs.IsResourceExhausted, "exceeded quota")
	})
	t.Run("no default class", func(t *testing.T) {
		fails(t, opened(t, withClaims(t, "")), errdefs.IsFailedPrecondition, "set kubernetes.pod.workspace.storage_class")
	})
	t.Run("wrong class", func(t *testing.T) {
		o := withClaims(t, "nowhere")
		const want = `kubernetes.pod.workspace.storage_class: storage class "nowhere" does not exist`
		if _, err := New(bounded(t), o); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("New = %v, want FailedPrecondition that names the setting", err)
		}
		o.Pod.Workspace.StorageClass = ""
		d := opened(t, o)
		d.opts.Pod.Workspace.StorageClass = "nowhere" // it was deleted since
		fails(t, d, errdefs.IsFailedPrecondition, want)
		config, err := clientcmd.LoadFromFile(o.Kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		grantPods(t, o.Namespace, "blind")
		grant(t, o.Namespace, "blind", "claims", `
			{"apiGroups":[""],"resources":["persistentvolumeclaims"],"verbs":["create","get","delete"]},
			{"apiGroups":[""],"resources":["events"],"verbs":["list","watch"]}`)
		config.AuthInfos["admin"].Impersonate = "blind"
		o.Kubeconfig, o.Pod.Workspace.StorageClass = write(t, config), "nowhere"
		fails(t, opened(t, o), errdefs.IsFailedPrecondition, want)
	})
}

// limitClaims sets a quota that allows no claim, and waits until it applies.
func limitClaims(t *testing.T, namespace string) {
	t.Helper()
	a := admin(t)
	to := "/api/v1/namespaces/" + namespace + "/resourcequotas"
	body := `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"none"},"spec":{"hard":{"persistentvolumeclaims":"0"}}}`
	if err := a.core.Post().AbsPath(to).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(bounded(t)).Error(); err != nil {
		t.Fatal(err)
	}
	for ctx := bounded(t); ; time.Sleep(50 * time.Millisecond) {
		text, err := a.core.Get().AbsPath(to, "none").Do(ctx).Raw()
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `"used":{"persistentvolumeclaims":"0"}`) {
			return
		}
	}
}
