//go:build kubernetes

package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// standbyHome is the namespace of a release whose pods have an address.
	standbyHome = "bridge-standby"
	standbyPods = "standby-pods"
	servicePort = "8080"
)

// standbyValues are for a service with a standby. Its pods reach the API server at an address that
// the test forwards.
const standbyValues = `image: {repository: %q, tag: %q, pullPolicy: Never}
replicas: 2
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

// sharedVolume is a volume for the state of both pods, in a directory of the node.
const sharedVolume = `apiVersion: v1
kind: PersistentVolume
metadata: {name: orchestrator-test-shared}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteMany]
  storageClassName: ""
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %q}
`

// TestChartStandbyTakesOver installs the chart with a standby. It deletes the pod that is active,
// kills the service in the next one, and has the one after that evicted. Each time the Service must
// route to the other pod within takeoverTime, which has the session, the shell and all sandboxes.
func TestChartStandbyTakesOver(t *testing.T) {
	t.Parallel()
	s := installStandby(t)
	first := s.awaitActive(t, "")
	s.checkStandby(t, first)
	if got, err := s.call(first, "tool", "call", "system.bash", "command=echo kept >note", "--session", "s1"); err != nil {
		t.Fatalf("tool call: %v: %s", err, got)
	}
	sandbox := s.do(t, first, "sandbox", "create", "--quiet")
	shell := s.do(t, first, "shell", "start", "--quiet", sandbox, "--", "sh", "-c", "i=0; while :; do echo line $((i += 1)); sleep 0.2; done")
	sandboxes := s.sandboxes(t)

	active := first
	for _, c := range []struct {
		what string
		end  func(*testing.T, endpoint)
	}{
		{"deleting the pod", func(t *testing.T, e endpoint) {
			t.Helper()
			s.c.do(t, "--namespace", standbyHome, "delete", "pod", e.pod, "--wait=false")
		}},
		{"kill -9 of the service", s.killService},
		{"evicting the pod", s.evict},
	} {
		t.Logf("%s: %s at %s", c.what, active.pod, active.address)
		began := time.Now()
		c.end(t, active)
		active = s.awaitActive(t, active.started)
		got := s.do(t, active, "tool", "call", "system.bash", "command=cat note", "--session", "s1")
		took := time.Since(began)
		t.Logf("from %s to the session's file: %v, in %s", c.what, took, active.pod)
		if !strings.Contains(got, "kept") || took > takeoverTime {
			t.Errorf("file of the session after %s = %q after %v, want it within %v", c.what, got, took, takeoverTime)
		}
		if end := s.do(t, active, "shell", "ls", "--no-trunc", sandbox); !strings.Contains(end, shell) || !strings.Contains(end, "running") {
			t.Errorf("shells after %s = %s, want %s running", c.what, end, shell)
		}
		for id := range sandboxes {
			if s.sandboxes(t)[id] == "" {
				t.Errorf("pod %s of a sandbox is gone after %s, want it adopted", sandboxes[id], c.what)
			}
		}
	}
	s.checkOutput(t, active, sandbox, shell)
}

// standbyRelease is an installed chart with a standby.
type standbyRelease struct {
	c     cluster
	bin   string
	token string // the file of the operators' token
}

// endpoint is a pod to which the Service routes.
type endpoint struct {
	pod, address string
	started      string // identifies the run of its container
}

func installStandby(t *testing.T) *standbyRelease {
	t.Helper()
	helm, dir := given(t, "HELM"), t.TempDir()
	s := &standbyRelease{c: cluster{kubectl: given(t, "KUBECTL"), admin: given(t, "KUBECONFIG")}, bin: given(t, "BIN")}
	loadSandboxImage(t)
	s.c.makeVolume(t, dir, sharedVolume)
	host, port := s.c.forwardAPI(t)
	repository, tag, _ := strings.Cut(given(t, "KUBERNETES_IMAGE"), ":")
	file := filepath.Join(dir, "values.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, standbyValues, repository, tag, host, port, standbyPods), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		own := []string{"--kubeconfig", s.c.admin, "--namespace", standbyHome}
		if t.Failed() {
			out, _ := output(s.c.kubectl, append(own, "logs", "--selector", "app.kubernetes.io/name=orchestrator", "--tail=50", "--prefix")...)
			state, _ := output(s.c.kubectl, append(own, "describe", "pods")...)
			t.Logf("logs of the service:\n%s\npods:\n%s", out, state)
		}
		_, _ = output(helm, append(own, "uninstall", release, "--ignore-not-found", "--wait")...)
		s.c.do(t, "delete", "namespace", standbyHome, standbyPods, "--ignore-not-found", "--wait")
	})
	do(t, helm, "--kubeconfig", s.c.admin, "--namespace", standbyHome, "install", release, chart, "--create-namespace",
		"--values", file)
	s.c.do(t, "--namespace", standbyHome, "wait", "--for=jsonpath={.status.readyReplicas}=1", "deployment/"+release, "--timeout=2m")
	s.token = s.c.tokenFile(t, standbyHome)
	return s
}

// forwardAPI makes the API server of the node, which listens on the loopback interface, available
// to pods with an interface.
func (c cluster) forwardAPI(t *testing.T) (host, port string) {
	t.Helper()
	server, err := url.Parse(c.do(t, "config", "view", "--output", "jsonpath={.clusters[0].cluster.server}"))
	if err != nil {
		t.Fatal(err)
	}
	// The address appears with the first pod.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var failed error
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		if err != nil {
			return err
		}
		return failed
	}}
	host = given(t, "KUBERNETES_GATEWAY")
	l, err := config.Listen(t.Context(), "tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			pod, err := l.Accept()
			if err != nil {
				return
			}
			go forward(pod, server.Host)
		}
	}()
	_, port, err = net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return host, port
}

// forward copies between a connection and an address until one of them ends.
func forward(from net.Conn, address string) {
	defer from.Close()
	to, err := new(net.Dialer).DialContext(context.Background(), "tcp", address)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(to, from) // its end ends the other direction
		to.Close()
	}()
	_, _ = io.Copy(from, to)
}

// ready returns the pods to which the Service routes, as its EndpointSlices say.
func (s *standbyRelease) ready() ([]endpoint, error) {
	const template = `{range .items[*].endpoints[?(@.conditions.ready==true)]}{.targetRef.name} {.addresses[0]}{"\n"}{end}`
	out, err := output(s.c.kubectl, "--kubeconfig", s.c.admin, "--namespace", standbyHome, "get", "endpointslices",
		"--selector", "kubernetes.io/service-name="+release, "--output", "jsonpath="+template)
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	var list []endpoint
	for line := range strings.Lines(out) {
		pod, address, _ := strings.Cut(strings.TrimSpace(line), " ")
		id, err := output(s.c.kubectl, "--kubeconfig", s.c.admin, "--namespace", standbyHome, "get", "pod", pod,
			"--output", "jsonpath={.status.containerStatuses[0].containerID}")
		if err != nil {
			continue // it has just gone
		}
		list = append(list, endpoint{pod, net.JoinHostPort(address, servicePort), id})
	}
	return list, nil
}

// awaitActive returns the pod to which the Service routes. It must be one, and another run than
// before.
func (s *standbyRelease) awaitActive(t *testing.T, before string) endpoint {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		list, err := s.ready()
		if err == nil && len(list) == 1 && list[0].started != before {
			return list[0]
		}
		if len(list) > 1 {
			t.Errorf("the Service routes to %v, want one pod", list)
		}
		if time.Now().After(end) {
			t.Fatalf("the Service routes to %v, %v; want one pod, and not the run %s", list, err, before)
		}
	}
}

func (s *standbyRelease) call(e endpoint, args ...string) (string, error) {
	return output(s.bin, append([]string{"--address", e.address, "--token-file", s.token}, args...)...)
}

func (s *standbyRelease) do(t *testing.T, e endpoint, args ...string) string {
	t.Helper()
	out, err := s.call(e, args...)
	if err != nil {
		t.Fatalf("orchestrator %q at %s: %v: %s", args, e.pod, err, out)
	}
	return out
}

// checkStandby checks that the pod which is not active waits without being restarted.
func (s *standbyRelease) checkStandby(t *testing.T, active endpoint) {
	t.Helper()
	time.Sleep(takeoverTime) // longer than a Lease
	const template = `{range .items[*]}{.metadata.name} {.status.containerStatuses[0].ready} {.status.containerStatuses[0].restartCount}{"\n"}{end}`
	out := s.c.do(t, "--namespace", standbyHome, "get", "pods", "--output", "jsonpath="+template)
	for line := range strings.Lines(out) {
		want := "false 0"
		if strings.HasPrefix(line, active.pod+" ") {
			want = "true 0"
		}
		if !strings.HasSuffix(strings.TrimSpace(line), " "+want) {
			t.Errorf("pod, readiness and restarts beside %s = %s, want %s", active.pod, line, want)
		}
	}
	if n := strings.Count(out, "\n"); n != 1 { // the last line has none after trimming
		t.Errorf("pods of the service = %s, want two", out)
	}
}

// killService kills the first process of a pod.
func (s *standbyRelease) killService(t *testing.T, e endpoint) {
	t.Helper()
	id := strings.TrimPrefix(e.started, "containerd://")
	socket := filepath.Join(given(t, "KUBERNETES_DIR"), "containerd.sock")
	if out, err := exec.Command("ctr", "--address", socket, "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", id).
		CombinedOutput(); err != nil {
		t.Fatalf("kill %s: %v: %s", id, err, out)
	}
}

// evict evicts a pod as a drain of its node does, which the PodDisruptionBudget must allow.
func (s *standbyRelease) evict(t *testing.T, e endpoint) {
	t.Helper()
	eviction := filepath.Join(t.TempDir(), "eviction.json")
	text := fmt.Sprintf(`{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": %q, "namespace": %q}}`, e.pod, standbyHome)
	if err := os.WriteFile(eviction, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.c.do(t, "create", "--raw", "/api/v1/namespaces/"+standbyHome+"/pods/"+e.pod+"/eviction", "--filename", eviction)
}

// sandboxes returns the names of the sandboxes' pods by UID.
func (s *standbyRelease) sandboxes(t *testing.T) map[string]string {
	t.Helper()
	pods := map[string]string{}
	for line := range strings.Lines(s.c.do(t, "get", "pods", "--namespace", standbyPods, "--output",
		`jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.uid} {.metadata.name}{"\n"}{end}`)) {
		uid, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		pods[uid] = name
	}
	return pods
}

// checkOutput checks that the shell's output has every line.
func (s *standbyRelease) checkOutput(t *testing.T, e endpoint, sandbox, shell string) {
	t.Helper()
	s.do(t, e, "shell", "kill", shell)
	out := s.do(t, e, "shell", "logs", shell)
	n := 0
	for line := range strings.Lines(out) {
		n++
		if want := fmt.Sprintf("line %d", n); strings.TrimSpace(line) != want {
			t.Fatalf("line %d of the shell's output = %q, want %q", n, line, want)
		}
	}
	if n < int(takeoverTime/time.Second) {
		t.Errorf("the shell wrote %d lines, want more than one per second", n)
	}
	s.do(t, e, "sandbox", "rm", sandbox)
}
