//go:build kubernetes

package kubernetes

import (
	"cmp"
	"encoding/base64"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	chart     = "../../deploy/helm/orchestrator"
	manifests = "../../deploy/kubernetes/orchestrator.yaml"
	release   = "orchestrator"
	// serviceUser runs the service in the chart.
	serviceUser = 65532
)

// values are for the node: its pods reach the API server only over the host's network, and its
// images are loaded, not pulled.
const values = `image: {repository: %q, tag: %q, pullPolicy: Never}
hostNetwork: true
port: %d
env:
  - {name: KUBERNETES_SERVICE_HOST, value: %q}
  - {name: KUBERNETES_SERVICE_PORT, value: %q}
sandboxes: {namespace: %s, network: none}
persistence: {storageClass: "", size: 1Gi}
resources: {requests: {cpu: 10m, memory: 64Mi}}
config:
  admission: {max_memory: 4GiB}
  kubernetes: {cpu_request: 0.01}
  templates:
    default:
      image: orchestrator/sandbox:latest
      limits: {memory: 192MiB}
      pool: {min: 1, max: 4}
`

// volume is a volume for the service's state, in a directory of the node.
const volume = `apiVersion: v1
kind: PersistentVolume
metadata: {name: orchestrator-test-state}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %q}
`

// TestChartValues checks that helm lint accepts the chart, that wrong values are refused by name,
// and that the plain manifests are what the chart makes.
func TestChartValues(t *testing.T) {
	t.Parallel()
	helm := given(t, "HELM")
	set := []string{"--set", "image.repository=registry.example.com/orchestrator"}
	do(t, helm, append([]string{"lint", "--strict", chart}, set...)...)
	for value, name := range map[string]string{
		"config.listen=unix:/x":                     "/config/listen",
		"config.kubernetes.namespace=x":             "/config/kubernetes/namespace",
		"config.kubernetes.classes.container=x":     "/config/kubernetes/classes",
		"config.kubernetes.pod.workspace.mode=x":    "/config/kubernetes/pod/workspace",
		"sandboxes.network=open":                    "/sandboxes/network",
		"replicas=3":                                "replicas",
		"sandboxes.namespace=" + release + "-other": "sandboxes.namespace",
	} {
		out, err := output(helm, append([]string{"template", release, chart, "--namespace", release + "-other",
			"--set", value}, set...)...)
		if err == nil || !strings.Contains(out, name) {
			t.Errorf("helm template with %s: %v: %s; want an error with %q", value, err, out, name)
		}
	}
	for value, want := range map[string]string{
		"config.kubernetes.pods.a.provider=knative":          "/config/kubernetes/pods/a/provider",
		"config.kubernetes.pods.a.provider=agent-sandbox":    "sandboxes.agentSandbox: true",
		"replicas=2,persistence.enabled=false":               "persistence.enabled: true",
		"replicas=2,config.kubernetes.election=false":        "config.kubernetes.election: true",
		"replicas=2,persistence.accessMode=ReadWriteOncePod": "/persistence/accessMode",
	} {
		out, err := output(helm, append([]string{"template", release, chart, "--set", value}, set...)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("helm template with %s: %v: %s; want an error with %q", value, err, out, want)
		}
	}
	for mode, want := range map[string]string{"": "podAntiAffinity", "ReadWriteOnce": "podAffinity"} {
		out := do(t, helm, append([]string{"template", release, chart, "--set", "replicas=2,persistence.accessMode=" + mode}, set...)...)
		if !strings.Contains(out, want+":") || !strings.Contains(out, "accessModes: ["+cmp.Or(mode, "ReadWriteMany")+"]") {
			t.Errorf("helm template with a standby and access mode %q lacks %s or the mode: %s", mode, want, out)
		}
	}
	if out, err := output(helm, "template", release, chart); err == nil || !strings.Contains(out, "image.repository is required") {
		t.Errorf("helm template without an image: %v: %s; want an error with the value's name", err, out)
	}
	classes := []string{"--set", "config.kubernetes.classes.gvisor=runsc"}
	if out := do(t, helm, append(append([]string{"template", release, chart}, classes...), set...)...); !strings.Contains(
		out,
		`resourceNames: ["runsc"]`,
	) {
		t.Errorf("helm template with a class = %s, want a role for its RuntimeClass", out)
	}
	agent := []string{"--set", "sandboxes.agentSandbox=true,config.kubernetes.pods.a.provider=agent-sandbox"}
	if out := do(t, helm, append(append([]string{"template", release, chart}, agent...), set...)...); strings.Count(
		out,
		"[extensions.agents.x-k8s.io]",
	) != 3 {
		t.Errorf("helm template with agent-sandbox = %s, want permissions for its three resources", out)
	}
	storage := []string{"--set", "config.kubernetes.pods.a.workspace.storage_class=slow,config.kubernetes.pod.workspace.storage_class=fast"}
	if out := do(t, helm, append(append([]string{"template", release, chart}, storage...), set...)...); !strings.Contains(
		out,
		`resourceNames: ["fast","slow"]`,
	) {
		t.Errorf("helm template with storage classes lacks the role for them: %s", out)
	}
	testServiceMonitor(t, helm, set)
	want, err := os.ReadFile(manifests)
	if err != nil {
		t.Fatal(err)
	}
	got := do(t, "../../integration/scripts/manifests.sh")
	if got != strings.TrimSpace(string(want)) {
		t.Errorf("%s differs from the output of manifests.sh, want it the same: run make manifests", manifests)
	}
}

// testServiceMonitor checks that the chart has a ServiceMonitor only if it is wanted, and that the
// service then has the port and the token that the monitor uses.
func testServiceMonitor(t *testing.T, helm string, set []string) {
	t.Helper()
	if out := do(t, helm, append([]string{"template", release, chart}, set...)...); strings.Contains(out, "metrics") {
		t.Errorf("helm template without serviceMonitor.enabled = %s, want nothing about metrics", out)
	}
	monitor := []string{"--set", "serviceMonitor.enabled=true,serviceMonitor.port=9999,serviceMonitor.labels.team=a"}
	out := do(t, helm, append(append([]string{"template", release, chart}, monitor...), set...)...)
	for _, want := range []string{
		"kind: ServiceMonitor", "team: a", "listen: 0.0.0.0:9999", "token_file: /etc/orchestrator/token/metrics",
		"{key: metrics-token, path: metrics}", "containerPort: 9999", "- port: metrics", "key: metrics-token",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("helm template with serviceMonitor.enabled lacks %q: %s", want, out)
		}
	}
}

// TestChartInstallsServiceThatSurvivesItsPod installs the chart, uses the service as its user
// would, deletes its pod under a session, and uninstalls it.
func TestChartInstallsServiceThatSurvivesItsPod(t *testing.T) {
	t.Parallel()
	const home, pods = "orchestrator-system", "orchestrator-pods"
	helm, dir := given(t, "HELM"), t.TempDir()
	c := cluster{kubectl: given(t, "KUBECTL"), admin: given(t, "KUBECONFIG")}
	loadSandboxImage(t)
	address := freeAddress(t)
	c.makeVolume(t, dir, volume)
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, []byte(c.values(t, address, pods)), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		return do(t, helm, append([]string{"--kubeconfig", c.admin, "--namespace", home}, args...)...)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := output(c.kubectl, "--kubeconfig", c.admin, "--namespace", home, "logs", release+"-0", "--tail=50")
			state, _ := output(c.kubectl, "--kubeconfig", c.admin, "--namespace", home, "describe", "pods")
			t.Logf("log of the service:\n%s\npods:\n%s", out, state)
		}
		_, _ = output(helm, "--kubeconfig", c.admin, "--namespace", home, "uninstall", release, "--ignore-not-found", "--wait")
		c.do(t, "delete", "namespace", home, pods, "--ignore-not-found", "--wait")
	})
	run("install", release, chart, "--create-namespace", "--values", file, "--wait", "--timeout", "2m")

	user := []string{"--address", address, "--token-file", c.tokenFile(t, home)}
	service := func(args ...string) (string, error) { return output(given(t, "BIN"), append(user, args...)...) }
	if got, err := service("run", "--", "id", "-u"); err != nil || got != "1000" {
		t.Fatalf("run id -u = %q, %v; want 1000", got, err)
	}
	if got, err := service("tool", "call", "system.bash", "command=echo kept >note", "--session", "s1"); err != nil {
		t.Fatalf("tool call: %v: %s", err, got)
	}
	// An upgrade keeps the token.
	run("upgrade", release, chart, "--values", file, "--set", "podLabels.upgraded=yes", "--wait", "--timeout", "2m")
	c.do(t, "--namespace", home, "delete", "pod", release+"-0", "--wait")
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		got, err := service("tool", "call", "system.bash", "command=cat note", "--session", "s1")
		if err == nil && strings.Contains(got, "kept") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("file of the session after the pod was deleted = %q, %v; want what it wrote before", got, err)
		}
	}
	run("uninstall", release, "--wait")
	if left, err := output(c.kubectl, "--kubeconfig", c.admin, "get", "namespace", pods); err == nil &&
		!strings.Contains(left, "Terminating") {
		t.Errorf("namespace of the sandboxes after uninstall: %s; want it gone", left)
	}
}

// tokenFile writes the operators' token to a file and returns its path.
func (c cluster) tokenFile(t *testing.T, home string) string {
	t.Helper()
	secret := c.do(t, "--namespace", home, "get", "secret", release+"-token", "--output", "jsonpath={.data.token}")
	token, err := base64.StdEncoding.DecodeString(secret)
	if err != nil {
		t.Fatalf("token in the secret: %v", err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, token, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// loadSandboxImage imports the sandbox image into the node unless it is there.
func loadSandboxImage(t *testing.T) {
	t.Helper()
	socket := filepath.Join(given(t, "KUBERNETES_DIR"), "containerd.sock")
	images := []string{"--address", socket, "--namespace", "k8s.io", "images"}
	if do(t, "ctr", append(images, "list", "--quiet", "name==docker.io/orchestrator/sandbox:latest")...) == "" {
		do(t, "ctr", append(images, "import", given(t, "IMAGE_ARCHIVE"))...)
	}
}

// freeAddress returns an address of this host that no socket has.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// makeVolume makes a volume for the state of the service. The kubelet does not change the owner of
// a directory of its node.
func (c cluster) makeVolume(t *testing.T, dir, volume string) {
	t.Helper()
	state := filepath.Join(dir, "state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(state, serviceUser, serviceUser); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "volume.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, volume, state), 0o600); err != nil {
		t.Fatal(err)
	}
	c.do(t, "apply", "--filename", file)
	t.Cleanup(func() { c.do(t, "delete", "--filename", file, "--wait") })
}

// values returns the values of the chart for this node.
func (c cluster) values(t *testing.T, address, pods string) string {
	t.Helper()
	server, err := url.Parse(c.do(t, "config", "view", "--output", "jsonpath={.clusters[0].cluster.server}"))
	if err != nil {
		t.Fatal(err)
	}
	repository, tag, _ := strings.Cut(given(t, "KUBERNETES_IMAGE"), ":")
	_, port, _ := strings.Cut(address, ":")
	var number int
	if _, err := fmt.Sscan(port, &number); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(values, repository, tag, number, server.Hostname(), server.Port(), pods)
}
