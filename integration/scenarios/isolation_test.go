//go:build integration

package scenarios

import (
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// testLeasesAreApart checks that a lease sees no files, processes, variables or names of another
// one, and that no sandbox is leased twice.
func testLeasesAreApart(t *testing.T, s *harness.Server) {
	word := uniqueWord()
	one := lease(t, s, v1.SandboxRequest{Env: map[string]string{"SECRET": word}})
	two := lease(t, s, v1.SandboxRequest{})
	if one.ID == two.ID {
		t.Fatal("both leases have the same sandbox, want two")
	}
	if got := sh(t, s, one.ID, "echo $SECRET"); got != word+"\n" {
		t.Errorf("the sandbox's own variable is %q, want %q", got, word+"\n")
	}
	write := "for d in /workspace /tmp $HOME /dev/shm; do echo " + word + " > $d/" + word + " || true; done"
	sh(t, s, one.ID, write+"; test -e /workspace/"+word)
	sleep := v1.Exec{Command: "exec -a " + word + " sleep 3000"}
	if _, err := s.Client.StartShell(within(t), one.ID, v1.ShellRequest{Exec: sleep}); err != nil {
		t.Fatal(err)
	}
	awaitProcesses(t, word, 1)
	look := "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; " +
		"find / -xdev -name 'mark-*' 2>/dev/null; ls -A /workspace /tmp $HOME /dev/shm; " +
		"cat /proc/1/mountinfo /proc/self/mountinfo"
	r := exec(t, s, two.ID, v1.Exec{Command: look, MaxOutputBytes: 4 << 20})
	for _, out := range []string{r.Stdout, r.Stderr} {
		if strings.Contains(out, word) || strings.Contains(out, one.ID) {
			t.Errorf("the other lease shows in the output, want nothing of it\n%s", out)
		}
	}
	assertContains(t, r.Stdout, "PATH=")
	release(t, s, one.ID)
	assertNoProcess(t, word)
	if _, err := s.Client.Exec(within(t), one.ID, v1.Exec{Command: "true"}); err == nil {
		t.Error("Exec in a released sandbox succeeded, want an error")
	}
	three := lease(t, s, v1.SandboxRequest{})
	if out := sh(t, s, three.ID, "ls -A /workspace /tmp $HOME; env"); strings.Contains(out, word) {
		t.Errorf("a later lease shows %[2]s, want nothing of an earlier one\n%[1]s", out, word)
	}
}

// testNoNetwork checks that a sandbox without rules has no address, no route and no name
// resolution.
func testNoNetwork(t *testing.T, s *harness.Server) {
	id := lease(t, s, v1.SandboxRequest{}).ID
	r := exec(t, s, id, v1.Exec{Command: "curl -sS --max-time 5 http://192.0.2.1/"})
	if r.Ending != "exited" || r.ExitCode == 0 {
		t.Errorf("curl to an address: %+v, want an exit code other than 0", r)
	}
	if r = exec(t, s, id, v1.Exec{Command: "curl -sS --max-time 5 https://example.com/"}); r.ExitCode == 0 {
		t.Errorf("curl to a name: %+v, want an exit code other than 0", r)
	}
	if got := sh(t, s, id, interfaces); strings.TrimSpace(got) != "lo" && got != "" {
		t.Errorf("network interfaces = %q, want loopback or none", got)
	}
	if got := sh(t, s, id, "tail -n +2 /proc/net/route"); got != "" {
		t.Errorf("routes = %q, want none", got)
	}
}

// testLists checks what the service reports of sandboxes, pools and itself.
func testLists(t *testing.T, s *harness.Server) {
	ctx := within(t)
	awaitNoLease(t, s)
	got := lease(t, s, v1.SandboxRequest{Labels: map[string]string{"who": "me"}})
	list, err := s.Client.Sandboxes(ctx, false)
	listed := err == nil && len(list) == 1 && list[0].ID == got.ID
	if !listed || list[0].Labels["who"] != "me" || list[0].State != "leased" {
		t.Errorf("Sandboxes = %+v, %v; want the leased one with its label", list, err)
	}
	if list[0].Runtime != s.Runtime || list[0].Template != "default" {
		t.Errorf("Sandboxes = %+v, want runtime %s and template default", list[0], s.Runtime)
	}
	release(t, s, got.ID)
	if list, err = s.Client.Sandboxes(ctx, false); err != nil || len(list) != 0 {
		t.Errorf("Sandboxes after the release = %+v, %v; want none", list, err)
	}
	ended, err := s.Client.Sandbox(ctx, got.ID)
	if err != nil || ended.State != "gone" || ended.Reason != "removed" || ended.EndedAt == nil {
		t.Errorf("Sandbox after the release = %+v, %v; want it gone because it was removed", ended, err)
	}
	v, err := s.Client.Version(ctx)
	if err != nil || v.Runtime != s.Runtime || v.Cgroup == "" || v.Version == "" {
		t.Errorf("Version = %+v, %v; want runtime %s with all fields", v, err, s.Runtime)
	}
	pools, err := s.Client.Pools(ctx)
	onePool := err == nil && len(pools) == 1 && pools[0].Template == "default"
	if !onePool || pools[0].Min != 2 || pools[0].Failed != 0 {
		t.Errorf("Pools = %+v, %v; want the one of template default without failures", pools, err)
	}
	for _, path := range []string{"/healthz", "/readyz", "/openapi.json", "/v1/images", "/v1/workspaces"} {
		if a := s.Ask(t, "GET", path, ""); a.Status != 200 {
			t.Errorf("GET %s: status %d, want 200: %.200s", path, a.Status, a.Body)
		}
	}
}
