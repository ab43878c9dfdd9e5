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

// onDisks runs a scenario on every runtime that mounts workspaces.
func onDisks(t *testing.T, run func(t *testing.T, s *harness.Server)) {
	for _, name := range harness.AllRuntimes() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, harness.Run(t, harness.Options{Runtime: name, Config: roomy, Seed: &seed}))
		})
	}
}

func bounded(t *testing.T, s *harness.Server) string {
	t.Helper()
	name := mark()
	if c := s.CLI(t, "workspace", "create", name, "--quota", "64MiB"); c.Code != 0 || !strings.Contains(c.Stdout, "64MiB") {
		t.Fatalf("%+v", c)
	}
	return name
}

// fullHere checks that a command ends for lack of space in the workspace.
func fullHere(t *testing.T, s *harness.Server, id, command string, code int) {
	t.Helper()
	r := exec(t, s, id, v1.Exec{Command: command})
	if r.Ending != "disk" || r.ExitCode != code || !strings.Contains(r.Detail, "/workspace (") {
		t.Errorf("%s: %s %d %s%s", command, r.Ending, r.ExitCode, r.Detail, r.Stderr)
	}
}

func size(t *testing.T, s *harness.Server, id, path string) int64 {
	t.Helper()
	var n int64
	if _, err := fmt.Sscan(sh(t, s, id, "stat -c %s "+path), &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestWorkspaceQuota(t *testing.T) {
	t.Parallel()
	onDisks(t, func(t *testing.T, s *harness.Server) {
		name := bounded(t, s)
		files := s.Client.WorkspaceFiles(name)
		put(t, files, "kept", "kept")
		id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID

		// One large file, many files, empty files.
		fullHere(t, s, id, "dd if=/dev/zero of=big bs=1M count=200", 1)
		if n := size(t, s, id, "big"); n > quotaBytes || n < quotaBytes*95/100 {
			t.Errorf("a file of %d octets in %d", n, quotaBytes)
		}
		if w, err := s.Client.Workspace(within(t), name); err != nil || w.QuotaBytes != quotaBytes || w.UsedBytes < quotaBytes*95/100 || w.UsedBytes > quotaBytes*105/100 {
			t.Errorf("%+v %v", w, err)
		}
		sh(t, s, id, "rm big")
		fullHere(t, s, id, "mkdir d; for i in {1..100}; do head -c 1M /dev/zero >d/$i || exit 5; done", 5)
		sh(t, s, id, "rm -r d; mkdir d")
		fullHere(t, s, id, `python3 -c "
for i in range(1000000):
    open('d/%d' % i, 'w').close()"`, 1)
		sh(t, s, id, "rm -r d; test $(cat kept) = kept; echo room > x; cat x")

		// Files written from outside, through the guest and on the host.
		sh(t, s, id, "head -c 60M /dev/zero >big")
		body := strings.Repeat("x", 8<<20)
		if _, err := s.Client.SandboxFiles(id).Write(within(t), "late", strings.NewReader(body), client.WriteOptions{}); !errdefs.IsResourceExhausted(err) {
			t.Errorf("a file through the guest: %v", err)
		}
		release(t, s, id)
		_, err := files.Write(within(t), "late", strings.NewReader(body), client.WriteOptions{})
		p, ok := errors.AsType[*v1.Problem](err)
		if !ok || !errdefs.IsResourceExhausted(err) || p.Status != http.StatusInsufficientStorage || p.Field != "path" || p.RetryAfterMS != 0 {
			t.Errorf("a file on the host: %+v, %v", p, err)
		}
		put(t, files, "kept", "still")
		if err := files.Remove(within(t), "big", false); err != nil {
			t.Fatal(err)
		}
		put(t, files, "late", body)
		if list, _, err := files.List(within(t), ""); err != nil || len(list) != 3 {
			t.Errorf("%+v %v", list, err)
		}
		deleteWorkspace(t, s, name)
	})
}

func deleteWorkspace(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	if err := s.Client.DeleteWorkspace(within(t), name); err != nil {
		t.Error(err)
	}
}

func TestWorkspaceIsResized(t *testing.T) {
	t.Parallel()
	onDisks(t, func(t *testing.T, s *harness.Server) {
		name := bounded(t, s)
		put(t, s.Client.WorkspaceFiles(name), "big", strings.Repeat("x", 40<<20))
		path := "/v1/workspaces/" + name
		s.Ask(t, "PATCH", path, `{"quota_bytes": 16777216}`).Problem(t, http.StatusConflict, "failed_precondition", "quota_bytes")
		s.Ask(t, "PATCH", path, `{"quota_bytes": -1}`).Problem(t, http.StatusBadRequest, "invalid_argument", "quota_bytes")
		s.Ask(t, "PATCH", path, `{"quota_bytes": 99999999999999}`).Problem(t, http.StatusBadRequest, "invalid_argument", "quota_bytes")
		s.Ask(t, "PATCH", path, `{}`).Problem(t, http.StatusBadRequest, "invalid_argument", "quota_bytes")
		s.CLI(t, "workspace", "resize", name, "192MiB").Is(t, 0, "")
		id := lease(t, s, v1.SandboxRequest{Workspace: name}).ID
		sh(t, s, id, "head -c 100M /dev/zero >more && test $(stat -c %s big) = 41943040")
		release(t, s, id)
		s.CLI(t, "workspace", "resize", name, "64MiB").Is(t, 78, "remove files first")
		if err := s.Client.WorkspaceFiles(name).Remove(within(t), "more", false); err != nil {
			t.Fatal(err)
		}
		s.CLI(t, "workspace", "resize", name, "64MiB").Is(t, 0, "")
		id = lease(t, s, v1.SandboxRequest{Workspace: name}).ID
		fullHere(t, s, id, "head -c 100M /dev/zero >more", 1)
		sh(t, s, id, "test $(tr -d x <big | wc -c) = 0 && test $(stat -c %s big) = 41943040")
		release(t, s, id)
		deleteWorkspace(t, s, name)
		s.Ask(t, "POST", "/v1/workspaces", `{"name": "w", "quota_bytes": 7}`).Problem(t, http.StatusBadRequest, "invalid_argument", "quota_bytes")
	})
}

// TestQuotaSurvivesKill kills the service while a full workspace is written to. The quota must
// still apply, and "down" must leave nothing mounted.
func TestQuotaSurvivesKill(t *testing.T) {
	t.Parallel()
	onDisks(t, func(t *testing.T, s *harness.Server) {
		ws := bounded(t, s)
		id := lease(t, s, v1.SandboxRequest{Workspace: ws}).ID
		sh(t, s, id, "echo before > before")
		if _, err := s.Client.StartShell(within(t), id, v1.ShellRequest{Exec: v1.Exec{Command: "while :; do head -c 100M /dev/zero >big; sleep 0.1; done"}}); err != nil {
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
			t.Errorf("mounted after down: %v", left)
		}
		loops, err := os.ReadDir("/sys/block")
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range loops {
			if file, err := os.ReadFile("/sys/block/" + l.Name() + "/loop/backing_file"); err == nil && strings.HasPrefix(string(file), s.Dir()) {
				t.Errorf("after down %s has %s", l.Name(), file)
			}
		}
		s.Start()
		if got := get(t, s.Client.WorkspaceFiles(ws), "after"); got != "after\n" {
			t.Errorf("%q", got)
		}
	})
}
