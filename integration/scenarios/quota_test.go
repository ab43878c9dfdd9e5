//go:build integration

package scenarios

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// quotaBytes is the size of the workspaces in these scenarios.
const quotaBytes = 64 << 20

// createBounded creates a workspace with a quota of quotaBytes and returns its name.
func createBounded(t *testing.T, s *harness.Server) string {
	t.Helper()
	name := uniqueWord()
	if c := s.CLI(t, "workspace", "create", name, "--quota", "64MiB"); c.Code != 0 ||
		!strings.Contains(c.Stdout, "64MiB") {
		t.Fatalf("workspace create --quota = %+v, want 64MiB in its output", c)
	}
	return name
}

// assertFull checks that a command ends for lack of space in the workspace.
func assertFull(t *testing.T, s *harness.Server, id, command string, code int) {
	t.Helper()
	r := exec(t, s, id, v1.Exec{Command: command})
	if r.Ending != "disk" || r.ExitCode != code || !strings.Contains(r.Detail, "/workspace (") {
		t.Errorf("%s: ending %s, exit code %d, want disk and %d, which names /workspace: %s%s",
			command, r.Ending, r.ExitCode, code, r.Detail, r.Stderr)
	}
}

// size returns the size of a file in a sandbox.
func size(t *testing.T, s *harness.Server, id, path string) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(sh(t, s, id, "stat -c %s "+path), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestWorkspaceQuota fills a workspace in several ways, in a sandbox, through the guest and on the
// host. Each must end for lack of space.
func TestWorkspaceQuota(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, roomy, func(t *testing.T, s *harness.Server) {
		name := createBounded(t, s)
		files := s.Client.Workspaces.Files(name)
		put(t, files, "kept", "kept")
		id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID

		// One large file, many files, empty files.
		assertFull(t, s, id, "dd if=/dev/zero of=big bs=1M count=200", 1)
		if n := size(t, s, id, "big"); n > quotaBytes || n < quotaBytes*95/100 {
			t.Errorf("the file has %d bytes, want between 95%% and all of %d", n, quotaBytes)
		}
		w, err := s.Client.Workspaces.Get(within(t), name)
		if err != nil || w.QuotaBytes != quotaBytes || w.UsedBytes < quotaBytes*95/100 || w.UsedBytes > quotaBytes*105/100 {
			t.Errorf("Workspace = %+v, %v; want the quota, and about all of it used", w, err)
		}
		sh(t, s, id, "rm big")
		assertFull(t, s, id, "mkdir d; for i in {1..100}; do head -c 1M /dev/zero >d/$i || exit 5; done", 5)
		sh(t, s, id, "rm -r d; mkdir d")
		assertFull(t, s, id, `python3 -c "
for i in range(1000000):
    open('d/%d' % i, 'w').close()"`, 1)
		sh(t, s, id, "rm -r d; test $(cat kept) = kept; echo room > x; cat x")

		// Files written through the guest and on the host.
		sh(t, s, id, "head -c 60M /dev/zero >big")
		body := strings.Repeat("x", 8<<20)
		_, err = s.Client.SandboxFiles(id).Write(within(t), "late", strings.NewReader(body), client.WriteOptions{})
		if !errdefs.IsResourceExhausted(err) {
			t.Errorf("Write through the guest over the quota: %v, want resource exhausted", err)
		}
		release(t, s, id)
		_, err = files.Write(within(t), "late", strings.NewReader(body), client.WriteOptions{})
		p, ok := errors.AsType[*v1.Problem](err)
		full := ok && errdefs.IsResourceExhausted(err) && p.Status == http.StatusInsufficientStorage
		if !full || p.Field != "path" || p.RetryAfterMS != 0 {
			t.Errorf("Write on the host over the quota: %+v, %v; want status 507 for the path, without a retry", p, err)
		}
		put(t, files, "kept", "still")
		if err := files.Remove(within(t), "big", false); err != nil {
			t.Fatal(err)
		}
		put(t, files, "late", body)
		if list, _, err := files.List(within(t), ""); err != nil || len(list) != 3 {
			t.Errorf("List = %+v, %v; want 3 entries", list, err)
		}
		deleteWorkspace(t, s, name)
	})
}

// deleteWorkspace deletes a workspace.
func deleteWorkspace(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	if err := s.Client.Workspaces.Delete(within(t), name); err != nil {
		t.Error(err)
	}
}

// TestWorkspaceIsResized grows and shrinks quotas, also below what is used.
func TestWorkspaceIsResized(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, roomy, func(t *testing.T, s *harness.Server) {
		name := createBounded(t, s)
		put(t, s.Client.Workspaces.Files(name), "big", strings.Repeat("x", 40<<20))
		path := "/v1/workspaces/" + name
		for body, want := range map[string]struct {
			status int
			code   string
		}{
			`{"quota_bytes": 16777216}`:       {http.StatusConflict, "failed_precondition"},
			`{"quota_bytes": -1}`:             {http.StatusBadRequest, "invalid_argument"},
			`{"quota_bytes": 99999999999999}`: {http.StatusBadRequest, "invalid_argument"},
			`{}`:                              {http.StatusBadRequest, "invalid_argument"},
		} {
			s.Ask(t, "PATCH", path, body).Problem(t, want.status, want.code, "quota_bytes")
		}
		s.CLI(t, "workspace", "resize", name, "192MiB").Is(t, 0, "")
		id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
		sh(t, s, id, "head -c 100M /dev/zero >more && test $(stat -c %s big) = 41943040")
		release(t, s, id)
		s.CLI(t, "workspace", "resize", name, "64MiB").Is(t, 78, "remove files first")
		if err := s.Client.Workspaces.Files(name).Remove(within(t), "more", false); err != nil {
			t.Fatal(err)
		}
		s.CLI(t, "workspace", "resize", name, "64MiB").Is(t, 0, "")
		id = lease(t, s, v1.SandboxRequest{Workspace: name}).ID
		assertFull(t, s, id, "head -c 100M /dev/zero >more", 1)
		sh(t, s, id, "test $(tr -d x <big | wc -c) = 0 && test $(stat -c %s big) = 41943040")
		release(t, s, id)
		deleteWorkspace(t, s, name)
		s.Ask(t, "POST", "/v1/workspaces", `{"name": "w", "quota_bytes": 7}`).
			Problem(t, http.StatusBadRequest, "invalid_argument", "quota_bytes")
	})
}

// TestQuotaSurvivesKill kills the service while a full workspace is written to. The quota must
// still apply, and "down" must leave nothing mounted.
func TestQuotaSurvivesKill(t *testing.T) {
	t.Parallel()
	onServerAllRuntimes(t, roomy, func(t *testing.T, s *harness.Server) {
		ws := createBounded(t, s)
		id := lease(t, s, v1.SandboxRequest{Workspace: ws}).ID
		sh(t, s, id, "echo before > before")
		write := v1.Exec{Command: "while :; do head -c 100M /dev/zero >big; sleep 0.1; done"}
		if _, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: write}); err != nil {
			t.Fatal(err)
		}
		s.Kill9()
		s.Start()
		sh(t, s, id, "test $(cat before) = before && test $(stat -c %s big) -le 67108864")
		release(t, s, id)
		id = lease(t, s, v1.SandboxRequest{Workspace: ws}).ID
		sh(t, s, id, "test $(cat before) = before && rm big && echo after > after")
		s.Kill9()
		s.Start()
		sh(t, s, id, "test $(cat after) = after")
		s.CLI(t, "down").Is(t, 0, "")
		s.Ended()
		if left := harness.MountsUnder(t, s.Dir()); len(left) > 0 {
			t.Errorf("mounts after down: %v, want none", left)
		}
		loops, err := os.ReadDir("/sys/block")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range loops {
			file, err := os.ReadFile("/sys/block/" + l.Name() + "/loop/backing_file")
			if err == nil && strings.HasPrefix(string(file), s.Dir()) {
				t.Errorf("after down, loop device %s has %s, want it detached", l.Name(), file)
			}
		}
		s.Start()
		if got := get(t, s.Client.Workspaces.Files(ws), "after"); got != "after\n" {
			t.Errorf("the workspace's file is %q, want %q", got, "after\n")
		}
	})
}
