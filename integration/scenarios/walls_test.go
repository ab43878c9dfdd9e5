//go:build integration

package scenarios

import (
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// Two leases at once: none sees files, processes, environment or names of the
// other, and a sandbox is never used twice.
func leasesAreApart(t *testing.T, s *harness.Server) {
	word := mark()
	one := lease(t, s, v1.SandboxRequest{Env: map[string]string{"SECRET": word}})
	two := lease(t, s, v1.SandboxRequest{})
	if one.ID == two.ID {
		t.Fatal("one sandbox for two leases")
	}
	if got := sh(t, s, one.ID, "echo $SECRET"); got != word+"\n" {
		t.Errorf("its own environment: %q", got)
	}
	sh(t, s, one.ID, "for d in /workspace /tmp $HOME /dev/shm; do echo "+word+" > $d/"+word+" || true; done; test -e /workspace/"+word)
	if _, err := s.Client.StartShell(within(t), one.ID, v1.ShellRequest{Exec: v1.Exec{Command: "exec -a " + word + " sleep 3000"}}); err != nil {
		t.Fatal(err)
	}
	seen(t, word, 1)
	look := "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; find / -xdev -name 'mark-*' 2>/dev/null; ls -A /workspace /tmp $HOME /dev/shm; cat /proc/1/mountinfo /proc/self/mountinfo"
	r := exec(t, s, two.ID, v1.Exec{Command: look, MaxOutputBytes: 4 << 20})
	for _, out := range []string{r.Stdout, r.Stderr} {
		if strings.Contains(out, word) || strings.Contains(out, one.ID) {
			t.Errorf("the other lease shows in\n%s", out)
		}
	}
	contains(t, r.Stdout, "PATH=")
	release(t, s, one.ID)
	gone(t, word)
	if _, err := s.Client.Exec(within(t), one.ID, v1.Exec{Command: "true"}); err == nil {
		t.Error("a released sandbox runs commands")
	}
	three := lease(t, s, v1.SandboxRequest{})
	if out := sh(t, s, three.ID, "ls -A /workspace /tmp $HOME; env"); strings.Contains(out, word) {
		t.Errorf("a later lease sees\n%s", out)
	}
}

// A call that tries the network finds none: no address, no route, no name.
func noNetwork(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	r := exec(t, s, id, v1.Exec{Command: "curl -sS --max-time 5 http://192.0.2.1/"})
	if r.Ending != "exited" || r.ExitCode == 0 {
		t.Errorf("%+v", r)
	}
	if r = exec(t, s, id, v1.Exec{Command: "curl -sS --max-time 5 https://example.com/"}); r.ExitCode == 0 {
		t.Errorf("%+v", r)
	}
	if got := sh(t, s, id, interfaces); strings.TrimSpace(got) != "lo" && got != "" {
		t.Errorf("interfaces: %q", got)
	}
	if got := sh(t, s, id, "tail -n +2 /proc/net/route"); got != "" {
		t.Errorf("routes: %q", got)
	}
}

func lists(t *testing.T, s *harness.Server) {
	ctx := within(t)
	noLease(t, s)
	got := lease(t, s, v1.SandboxRequest{Labels: map[string]string{"who": "me"}})
	list, err := s.Client.Sandboxes(ctx, false)
	if err != nil || len(list) != 1 || list[0].ID != got.ID || list[0].Labels["who"] != "me" || list[0].State != "leased" {
		t.Errorf("%+v %v", list, err)
	}
	if list[0].Runtime != s.Runtime || list[0].Template != "default" {
		t.Errorf("%+v", list[0])
	}
	release(t, s, got.ID)
	if list, err = s.Client.Sandboxes(ctx, false); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	over, err := s.Client.Sandbox(ctx, got.ID)
	if err != nil || over.State != "gone" || over.Reason != "removed" || over.EndedAt == nil {
		t.Errorf("%+v %v", over, err)
	}
	v, err := s.Client.Version(ctx)
	if err != nil || v.Runtime != s.Runtime || v.Cgroup == "" || v.Version == "" {
		t.Errorf("%+v %v", v, err)
	}
	pools, err := s.Client.Pools(ctx)
	if err != nil || len(pools) != 1 || pools[0].Template != "default" || pools[0].Min != 2 || pools[0].Failed != 0 {
		t.Errorf("%+v %v", pools, err)
	}
	for path, status := range map[string]int{"/healthz": 200, "/readyz": 200, "/openapi.json": 200, "/v1/images": 200, "/v1/workspaces": 200} {
		if a := s.Ask(t, "GET", path, ""); a.Status != status {
			t.Errorf("%s: %d %.200s", path, a.Status, a.Body)
		}
	}
}
