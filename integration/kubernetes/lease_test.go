//go:build kubernetes

package kubernetes

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestLeaseRecordsWhyItsPodEnded(t *testing.T) {
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	loadSandboxImage(t)
	c := newCluster(t, dir)
	s := newService(t, dir, c.user)
	s.start(t)
	t.Cleanup(func() {
		s.kill(t)
		s.do(t, "down")
	})
	id := s.do(t, "sandbox", "create", "--quiet")
	eviction := dir + "/eviction"
	pod := "orchestrator-" + id
	body := `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"` + pod + `"}}`
	if err := os.WriteFile(eviction, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	c.do(t, "create", "--raw", "/api/v1/namespaces/"+namespace+"/pods/"+pod+"/eviction", "--filename", eviction)
	const why = "the pod was evicted by a request to the API server"
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		got := s.do(t, "sandbox", "inspect", id)
		if strings.Contains(got, "lost") && strings.Contains(got, why) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("record of the evicted lease = %s, want the reason", got)
		}
	}
	if out, err := output(s.bin, "--config", s.config, "exec", id, "--", "true"); err == nil || !strings.Contains(out, why) {
		t.Errorf("exec in the evicted sandbox = %q, %v; want the reason", out, err)
	}
}
