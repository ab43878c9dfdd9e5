//go:build integration

package scenarios

import (
	"fmt"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// userNamespaceConfig gives every sandbox a user namespace.
const userNamespaceConfig = `
templates:
  default:
    user_namespace: own
    limits: {memory: 192MiB, pids: 160}
    pool: {min: 1, max: 6, rate: 10}
`

// idMap returns the host's id of user 0 in a sandbox.
func idMap(t *testing.T, s *harness.Server, id string) (first uint32) {
	t.Helper()
	text := sh(t, s, id, "cat /proc/self/uid_map")
	var inside, count uint32
	if _, err := fmt.Sscan(text, &inside, &first, &count); err != nil || inside != 0 || first == 0 || count != 1<<16 {
		t.Fatalf("uid_map = %q, %v; want a range of 65536 ids", text, err)
	}
	return first
}

// TestUserNamespaces checks the life of sandboxes with user namespaces: workspaces in every mode
// keep the owners of their files, and a lease outlives a crash of the service with its ids.
func TestUserNamespaces(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		s := harness.Run(t, harness.Options{Runtime: name, Config: userNamespaceConfig, Seed: &seed})
		if name != "oci" && name != "containerd" {
			assertNoUserNamespaces(t, s, name)
			return
		}
		if tm, _ := templateState(t, s, "default"); !tm.UserNamespace {
			t.Errorf("template = %+v, want user_namespace", tm)
		}
		w := workspace(t, s)
		put(t, s.Client.Workspaces.Files(w), "file", "from outside\n")
		one := lease(t, s, v1.SandboxRequest{Workspace: w}).ID
		const look = "cat file; echo inside >mine; stat -c '%u:%g' file mine . /tmp /usr/bin/env; id -u"
		if got, want := sh(t, s, one, look), "from outside\n1000:1000\n1000:1000\n1000:1000\n0:0\n0:0\n1000\n"; got != want {
			t.Errorf("owners in the sandbox = %q, want %q", got, want)
		}
		first := idMap(t, s, one)
		s.Kill9()
		s.Start()
		if got := idMap(t, s, one); got != first {
			t.Errorf("ids after a crash of the service = %d, want still %d", got, first)
		}
		release(t, s, one)

		changed := lease(t, s, v1.SandboxRequest{Workspace: w, Mode: "overlay"})
		if second := idMap(t, s, changed.ID); second == first {
			t.Logf("the next sandbox has the same ids, which is possible once they were returned")
		}
		sh(t, s, changed.ID, "echo changed >>file; mkdir new; echo x >new/x; rm mine; stat -c %u new/x | grep -qx 1000")
		if _, err := commitAll(t, s, changed.ID); err != nil {
			t.Fatal(err)
		}
		last := lease(t, s, v1.SandboxRequest{Workspace: w, ReadOnly: true}).ID
		got := sh(t, s, last, "cat file; ls; stat -c '%u:%g' file new/x; touch file 2>/dev/null || echo read-only")
		if want := "from outside\nchanged\nfile\nnew\n1000:1000\n1000:1000\nread-only\n"; got != want {
			t.Errorf("the workspace after the commit = %q, want %q", got, want)
		}
	})
}

// assertNoUserNamespaces checks that a runtime without user namespaces says so for the template.
func assertNoUserNamespaces(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	tm, _ := templateState(t, s, "default")
	if tm.State != "not_ready" || !strings.Contains(tm.Error, "user_namespace: runtime "+name) {
		t.Errorf("template = %+v, want that it is not ready because of user_namespace", tm)
	}
}
