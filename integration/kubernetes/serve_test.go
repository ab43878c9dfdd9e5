//go:build kubernetes

// Package kubernetes runs the service with runtime kubernetes on the node of
// integration/scripts/kubernetes.sh, with the permissions of docs/examples/kubernetes.yaml.
package kubernetes

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	patience  = 2 * time.Minute
	namespace = "orchestrator"
	examples  = "../../docs/examples/kubernetes.yaml"
)

// given returns an environment variable that make test-kubernetes sets.
func given(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv("ORCHESTRATOR_TEST_" + name)
	if value == "" {
		t.Skipf("ORCHESTRATOR_TEST_%s is not set: run make test-kubernetes", name)
	}
	return value
}

// do runs a program, which must succeed, and returns its trimmed standard output.
func do(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := output(name, args...)
	if err != nil {
		t.Fatalf("command %s %q: %v: %s", filepath.Base(name), args, err, out)
	}
	return out
}

// output runs a program and returns its trimmed standard output; if it fails, with its standard
// error.
func output(name string, args ...string) (string, error) {
	return outputWithin(patience, name, args...)
}

// outputWithin is output with a limit of time.
func outputWithin(limit time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return string(out) + stderr.String(), err
	}
	return strings.TrimSpace(string(out)), nil
}

// cluster is the node with the example's namespace and user.
type cluster struct{ kubectl, admin, user string }

func (c cluster) do(t *testing.T, args ...string) string {
	t.Helper()
	return do(t, c.kubectl, append([]string{"--kubeconfig", c.admin}, args...)...)
}

// newCluster applies the example and returns a kubeconfig of its service account.
func newCluster(t *testing.T, dir string) cluster {
	t.Helper()
	c := cluster{kubectl: given(t, "KUBECTL"), admin: given(t, "KUBECONFIG"), user: filepath.Join(dir, "kubeconfig")}
	c.do(t, "apply", "--filename", examples)
	t.Cleanup(func() { c.do(t, "delete", "--filename", examples, "--wait") })
	server := c.do(t, "config", "view", "--output", "jsonpath={.clusters[0].cluster.server}")
	authority := c.do(t, "config", "view", "--output", "jsonpath={.clusters[0].cluster.certificate-authority}")
	token := c.do(t, "create", "token", "orchestrator", "--namespace", namespace)
	own := []string{"--kubeconfig", c.user, "config"}
	do(t, c.kubectl, append(own, "set-cluster", "test", "--server", server, "--certificate-authority", authority)...)
	do(t, c.kubectl, append(own, "set-credentials", "orchestrator", "--token", token)...)
	do(t, c.kubectl, append(own, "set-context", "test", "--cluster", "test", "--user", "orchestrator")...)
	do(t, c.kubectl, append(own, "use-context", "test")...)
	return c
}

// service is the program with one configuration file.
type service struct {
	bin, config, socket string
	env                 []string // besides that of the test
	cmd                 *exec.Cmd
	log                 *os.File
}

func newService(t *testing.T, dir, kubeconfig string) *service {
	t.Helper()
	return newServiceAt(t, dir, "a", "state", kubeconfig)
}

// newServiceAt returns a service with its own socket and a state directory in dir.
func newServiceAt(t *testing.T, dir, name, state, kubeconfig string) *service {
	t.Helper()
	s := &service{
		bin: given(t, "BIN"), config: filepath.Join(dir, name+".yaml"), socket: filepath.Join(dir, name+".sock"),
	}
	text := fmt.Sprintf(`listen: unix:%s
state_dir: %s
runtime: kubernetes
admission: {max_memory: 4GiB}
kubernetes:
  kubeconfig: %s
  guest_image: %s
  network: none
  pull_policy: Never
  cpu_request: 0.01
templates:
  default:
    image: orchestrator/sandbox:latest
    limits: {memory: 192MiB}
    pool: {min: 1, max: 4}
`, s.socket, filepath.Join(dir, state), kubeconfig, given(t, "KUBERNETES_IMAGE"))
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	s.log = log
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("log of service %s:\n%s", name, text)
		}
		log.Close()
	})
	return s
}

// start starts the service and waits until it listens.
func (s *service) start(t *testing.T) {
	t.Helper()
	s.cmd = exec.Command(s.bin, "--config", s.config, "serve")
	s.cmd.Stdout, s.cmd.Stderr, s.cmd.Env = s.log, s.log, append(os.Environ(), s.env...)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// kill ends the service as a crash would.
func (s *service) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait() // it was killed
}

func (s *service) do(t *testing.T, args ...string) string {
	t.Helper()
	return do(t, s.bin, append([]string{"--config", s.config}, args...)...)
}

func TestServiceRunsCommandsAndToolsInPods(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	loadSandboxImage(t)
	c := newCluster(t, dir)
	s := newService(t, dir, c.user)
	s.start(t)
	t.Cleanup(func() { _ = s.cmd.Process.Kill() }) // after a failure; it has ended otherwise
	if got := s.do(t, "run", "--", "echo", "hi"); got != "hi" {
		t.Errorf("run echo hi = %q, want hi", got)
	}
	if got := s.do(t, "tool", "call", "system.bash", "command=echo governed >note && cat note", "--session", "s1"); !strings.Contains(
		got,
		"governed",
	) {
		t.Errorf("tool call system.bash = %q, want the command's output", got)
	}
	audit := s.do(t, "audit", "ls")
	if !strings.Contains(audit, "system.bash") {
		t.Errorf("audit ls = %q, want the tool call", audit)
	}
	before := c.do(t, "get", "pods", "--namespace", namespace, "--output", "name")
	s.kill(t)
	s.start(t)
	if got := s.do(t, "tool", "call", "system.bash", "command=cat note", "--session", "s1"); !strings.Contains(
		got,
		"governed",
	) {
		t.Errorf("file of the session after kill -9 = %q, want what it wrote before; pods before %q, now %q",
			got, before, c.do(t, "get", "pods", "--namespace", namespace, "--output", "name"))
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the service ended with %v, want no error", err)
	}
	s.do(t, "down")
	if left := c.do(t, "get", "pods", "--namespace", namespace, "--output", "name"); left != "" {
		t.Errorf("pods after down = %s, want none", left)
	}
}
