//go:build kubernetes

package kubernetes

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/runtime/ocispec"
)

// entrypoint is the sandbox image's command before the guest.
const entrypoint = "/usr/local/lib/orchestrator/entrypoint.sh"

// seccompFile is our filter in the node's seccomp directory.
const seccompFile = "orchestrator.json"

// given returns an environment variable that kubernetes.sh env or make test-kubernetes sets.
func given(t testing.TB, name string) string {
	t.Helper()
	value := os.Getenv("ORCHESTRATOR_TEST_" + name)
	if value == "" {
		t.Skipf("ORCHESTRATOR_TEST_%s is not set: run make test-kubernetes", name)
	}
	return value
}

// options of a driver for the test node, with everything that a node can enforce.
func options(t testing.TB, namespace string) Options {
	t.Helper()
	pids, err := strconv.ParseInt(given(t, "KUBERNETES_POD_PIDS"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	profile, err := ocispec.SeccompJSON()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(given(t, "KUBERNETES_DIR"), "kubelet", "seccomp", seccompFile), profile, 0o644); err != nil {
		t.Fatal(err)
	}
	return Options{
		Kubeconfig: given(
			t,
			"KUBECONFIG",
		), Namespace: namespace, GuestImage: given(t, "KUBERNETES_IMAGE"), PullPolicy: "Never",
		Network: NetworkNone, SeccompProfile: seccompFile, PodPids: pids, CPURequest: 0.01,
		Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
}

// newNamespace makes a namespace for one test. Its pods have no interface, and are gone before it
// is deleted.
func newNamespace(t testing.TB, level string) string {
	t.Helper()
	return makeNamespace(t, "test-", level)
}

// newBridgedNamespace is newNamespace for pods with an interface.
func newBridgedNamespace(t testing.TB, level string) string {
	t.Helper()
	return makeNamespace(t, "bridge-", level)
}

func makeNamespace(t testing.TB, prefix, level string) string {
	t.Helper()
	a := admin(t)
	ns := &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix,
			Labels:       map[string]string{"pod-security.kubernetes.io/enforce": level},
		},
	}
	got := new(corev1.Namespace)
	if err := a.core.Post().Resource("namespaces").Body(ns).Do(t.Context()).Into(got); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.core.Delete().Resource("namespaces").Name(got.Name).Do(context.Background()).Error(); err != nil {
			t.Error(err)
		}
	})
	return got.Name
}

// admin returns a client with all permissions.
func admin(t testing.TB) *api {
	t.Helper()
	config, err := loadConfig(given(t, "KUBECONFIG"), "")
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAPI(config, "default")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func open(t testing.TB, o Options) *Driver {
	t.Helper()
	d, err := New(context.WithoutCancel(t.Context()), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// sandboxImage returns the sandbox image, which is imported into the node.
func sandboxImage(t testing.TB) runtime.Image {
	t.Helper()
	i := runtime.Image{Ref: "orchestrator/sandbox:latest", Root: given(t, "ROOTFS"), Archive: given(t, "IMAGE_ARCHIVE")}
	i.ID = configOf(t, i.Archive)
	load(t, i)
	return i
}

// configOf returns the digest of the configuration that an archive names.
func configOf(t testing.TB, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("%s has no manifest: %v", archive, err)
		}
		if h.Name != "manifest.json" {
			continue
		}
		var manifest []struct{ Config string }
		text, err := io.ReadAll(r)
		if err = errors.Join(err, json.Unmarshal(text, &manifest)); err != nil || len(manifest) != 1 {
			t.Fatalf("manifest of %s: %q, %v; want one image", archive, text, err)
		}
		return "sha256:" + strings.TrimSuffix(manifest[0].Config, ".json")
	}
}

// inNode is the name of an image in the node.
func inNode(i runtime.Image) string {
	return "localhost/suite:" + strings.TrimPrefix(i.ID, "sha256:")[:16]
}

// loading is held during an import: parallel tests need the same image, and one import of it takes
// seconds.
var loading sync.Mutex

// load imports an image into the node's containerd unless it is there.
func load(t testing.TB, i runtime.Image) {
	t.Helper()
	loading.Lock()
	defer loading.Unlock()
	if ctr(t, "images", "list", "--quiet", "name=="+inNode(i)) == "" {
		ctr(t, "images", "import", "--index-name", inNode(i), i.Archive)
	}
}

// ctr runs containerd's client on the node and returns its output.
func ctr(t testing.TB, args ...string) string {
	t.Helper()
	socket := filepath.Join(given(t, "KUBERNETES_DIR"), "containerd.sock")
	out, err := exec.Command("ctr", append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...).
		CombinedOutput()
	if err != nil {
		t.Errorf("ctr %q: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// nodeDriver imports images into the node, as a registry would give them to it. The driver itself
// names images by reference only.
type nodeDriver struct {
	*Driver
	t *testing.T
}

func (d nodeDriver) Prepare(_ context.Context, i runtime.Image) error {
	load(d.t, i)
	return nil
}

func (d nodeDriver) Create(ctx context.Context, spec runtime.Spec) (runtime.Sandbox, error) {
	if spec.Image.Archive != "" {
		spec.Image.Ref = inNode(spec.Image)
	}
	return d.Driver.Create(ctx, spec)
}
