//go:build kubernetes

package kubernetes

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

const (
	// takeoverTime is how long a standby may take from the end of the active service to the first
	// call.
	takeoverTime = 15 * time.Second
	// callTime bounds a call of a service that ends meanwhile: its client waits for another one.
	callTime = 20 * time.Second
)

// readyz returns status and body of GET /readyz, or 0 if nothing answers.
func (s *service) readyz() (int, string) {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.socket)
	}, DisableKeepAlives: true}, Timeout: 5 * time.Second}
	resp, err := client.Get("http://orchestrator/readyz")
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body) //nolint:errcheck // what came is compared
	return resp.StatusCode, string(body)
}

// awaitReady returns how long the service took to become ready.
func (s *service) awaitReady(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for end := began.Add(patience); ; time.Sleep(20 * time.Millisecond) {
		code, body := s.readyz()
		if code == http.StatusOK {
			return time.Since(began)
		}
		if time.Now().After(end) {
			t.Fatalf("GET /readyz = %d %s, want 200", code, body)
		}
	}
}

func (s *service) text(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(s.log.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// scene is a cluster with an active service that has a session with a file, and a warm pod.
func scene(t *testing.T) (c cluster, dir string, active *service) {
	t.Helper()
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	loadSandboxImage(t)
	c = newCluster(t, dir)
	active = newService(t, dir, c.user)
	active.start(t)
	t.Cleanup(func() { _ = active.cmd.Process.Kill() }) // after a failure; it has ended otherwise
	active.awaitReady(t)
	active.do(t, "tool", "call", "system.bash", "command=echo governed >note", "--session", "s1")
	c.awaitPods(t, 2)
	return c, dir, active
}

// pods returns the running pods by UID, with their names.
func (c cluster) pods(t *testing.T) map[string]string {
	t.Helper()
	pods := map[string]string{}
	for line := range strings.Lines(c.do(t, "get", "pods", "--namespace", namespace, "--output",
		`jsonpath={range .items[?(@.status.phase=="Running")]}{.metadata.uid} {.metadata.name}{"\n"}{end}`)) {
		uid, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		pods[uid] = name
	}
	return pods
}

func (c cluster) awaitPods(t *testing.T, n int) map[string]string {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		pods := c.pods(t)
		if len(pods) >= n {
			return pods
		}
		if time.Now().After(end) {
			t.Fatalf("running pods = %v, want %d", pods, n)
		}
	}
}

// TestStandbyTakesOverAfterKill kills the active service. A standby on the same state directory
// must be active with the session within takeoverTime.
func TestStandbyTakesOverAfterKill(t *testing.T) {
	c, dir, active := scene(t)
	before := c.pods(t)
	standby := newServiceAt(t, dir, "b", "state", c.user)
	standby.start(t)
	t.Cleanup(func() { _ = standby.cmd.Process.Kill() })
	code, body := standby.readyz()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if code != http.StatusServiceUnavailable || !strings.Contains(body, "holds Lease") || !strings.Contains(body, host+"_") {
		t.Errorf("GET /readyz of the standby = %d %s, want 503 with the holder", code, body)
	}
	time.Sleep(takeoverTime) // longer than a Lease: the standby must not take it from a holder that renews it
	if code, body := standby.readyz(); code != http.StatusServiceUnavailable {
		t.Errorf("GET /readyz of the standby beside an active service = %d %s, want 503", code, body)
	}
	if n := strings.Count(standby.text(t), "waiting as a standby"); n != 1 {
		t.Errorf("the standby logged its state %d times, want once:\n%s", n, standby.text(t))
	}
	began := time.Now()
	active.kill(t)
	standby.awaitReady(t)
	got := standby.do(t, "tool", "call", "system.bash", "command=cat note", "--session", "s1")
	took := time.Since(began)
	t.Logf("from kill -9 to the session's file: %v", took)
	if !strings.Contains(got, "governed") || took > takeoverTime {
		t.Errorf("file of the session = %q after %v, want it within %v", got, took, takeoverTime)
	}
	adopted := c.pods(t)
	for uid, name := range before {
		if adopted[uid] == "" {
			t.Errorf("pod %s is gone after the takeover, want it adopted", name)
		}
	}
	standby.end(t)
}

// end takes everything down.
func (s *service) end(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("the service ended with %v, want no error", err)
	}
	s.do(t, "down")
}

// TestPausedServiceIsFenced pauses the active service while another machine gets its volume. The
// new one is active within the time of a Lease; the old one can then use none of its pods.
func TestPausedServiceIsFenced(t *testing.T) {
	c, dir, old := scene(t)
	if err := old.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	do(t, "cp", "--archive", filepath.Join(dir, "state"), filepath.Join(dir, "moved"))
	next := newServiceAt(t, dir, "b", "moved", c.user)
	next.start(t)
	t.Cleanup(func() { _ = next.cmd.Process.Kill() })
	t.Logf("active after %v", next.awaitReady(t))
	owned := c.awaitPods(t, 2)
	// Requests that wait in the old service's socket, and are served as soon as it continues.
	const callers = 4
	answers := make(chan string, 2*callers)
	// Not by the command line: without a server, its run makes a pod of its own.
	cl, err := client.New(client.Options{Address: "unix:" + old.socket})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), callTime)
	defer cancel()
	for i := range callers {
		go func() {
			r, err := cl.Tools.Call(ctx, "system.bash",
				v1.ToolCall{Session: "s1", Input: []byte(`{"command":"echo old >note; echo wrote"}`)}, client.CallOptions{})
			answers <- fmt.Sprintf("session %d: %v %s", i, err, r.Text)
		}()
		go func() {
			r, err := cl.Run(ctx, v1.Run{Exec: v1.Exec{Command: "echo wrote"}})
			answers <- fmt.Sprintf("run %d: %v %s", i, err, r.Stdout)
		}()
	}
	awaitConnections(t, old.socket, 2*callers)
	if err := old.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err = old.cmd.Wait()
	t.Logf("the old service ended after %v: %v", time.Since(began), err)
	if err == nil || !strings.Contains(old.text(t), "was lost") {
		t.Errorf("end of the old service = %v, want an error about the Lease", err)
	}
	for range 2 * callers {
		if got := <-answers; strings.Contains(got, "wrote") {
			t.Errorf("the old service ran a command in a pod of the new one: %s; want it refused", got)
		}
	}
	now := c.pods(t)
	for uid, name := range owned {
		if now[uid] == "" {
			t.Errorf("pod %s of the new service is gone, want it kept", name)
		}
	}
	if got := next.do(t, "tool", "call", "system.bash", "command=cat note", "--session", "s1"); !strings.Contains(got, "governed") {
		t.Errorf("file of the session = %q, want what it had", got)
	}
	next.end(t)
}

// awaitConnections waits until so many clients have connected to a unix socket.
func awaitConnections(t *testing.T, socket string, n int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		table, err := os.ReadFile("/proc/net/unix")
		if err != nil {
			t.Fatal(err)
		}
		// The listening socket is one of the lines.
		if got := strings.Count(string(table), " "+socket+"\n") - 1; got >= n {
			return
		} else if time.Now().After(end) {
			t.Fatalf("%d clients are connected to %s, want %d", got, socket, n)
		}
	}
}
