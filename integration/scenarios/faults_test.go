//go:build integration && faults

package scenarios

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// allFailpoints finds every failpoint of the program in the source, so that none is forgotten.
func allFailpoints(t *testing.T) []string {
	t.Helper()
	hit := regexp.MustCompile(`failpoint\.Hit\("([^"]+)"\)`)
	found := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range hit.FindAllSubmatch(text, -1) {
			found[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Sorted(maps.Keys(found))
}

// failpointsOf returns the failpoints that a runtime reaches in the life of a sandbox.
func failpointsOf(t *testing.T, runtime string) []string {
	t.Helper()
	var points []string
	for _, p := range allFailpoints(t) {
		first, _, _ := strings.Cut(p, ".")
		if strings.HasPrefix(p, "start.") {
			continue // reached during a start: see TestKilledStartIsRecovered
		}
		if first == "audit" {
			continue // reached only when a part of the log ends: the tests of package audit kill it there
		}
		if first == "kubernetes" {
			continue // reached only on a cluster, which these scenarios do not have
		}
		if strings.HasPrefix(p, "scheduler.queue.") {
			continue // reached only by native jobs: see TestNativeJobSurvivesCrashes
		}
		if strings.HasPrefix(p, "scheduler.claim.") {
			continue // reached only with a volume claim: see TestVolumeClaimSurvivesCrashes
		}
		if strings.Contains(p, "carry.") {
			continue // reached only when a workspace is copied: see TestCopiedWorkspaceSurvivesCrash
		}
		if strings.Contains(p, ".ids.") {
			continue // reached only with user namespaces: see TestCrashWithUserNamespace of runtime/oci
		}
		if first == "jobs" {
			continue // reached only by jobs: see TestJobsSurviveCrashes
		}
		if strings.Contains(p, ".prepare.") || strings.Contains(p, ".gvisor.") {
			continue // not reached by a call: the driver's own tests cover it
		}
		if !slices.Contains(harness.AllRuntimes(), first) || first == runtime {
			points = append(points, p)
		}
	}
	if len(points) < 10 {
		t.Fatalf("failpoints = %v, want at least 10", points)
	}
	return points
}

// TestServerRecoversFromCrashAtEveryPoint kills the server at each step of create, lease and
// destroy. After the next start everything must be accounted for, and calls must work.
func TestServerRecoversFromCrashAtEveryPoint(t *testing.T) {
	t.Parallel()
	onAllRuntimes(t, func(t *testing.T, name string) {
		s := harness.New(t,
			harness.Options{Runtime: name, Bin: harness.Need(t, harness.EnvFaults), Config: onDemand, Seed: &seed})
		s.Start()
		ws := workspace(t, s)
		s.Term()
		for _, point := range failpointsOf(t, name) {
			ok := t.Run(point, func(t *testing.T) {
				defer s.For(t)()
				crash(t, s, point, ws)
				s.Configure(onDemand)
				s.Start()
				awaitAccounted(t, s)
				assertUsable(t, s, ws)
				s.Term()
				if live, _ := s.Rows(t); len(live) > 0 {
					t.Errorf("sandboxes in the database after the test: %v, want none", live)
				}
			})
			if !ok {
				break // the next point would start with what this one left
			}
		}
	})
}

// crash takes a sandbox through all states, with a server that dies at the point.
func crash(t *testing.T, s *harness.Server, point, ws string) {
	t.Helper()
	env := "ORCHESTRATOR_FAULT=" + point
	if strings.HasPrefix(point, "scheduler.destroy.") {
		// Replace warm sandboxes of a changed template, which were never leased.
		s.Configure(strings.Replace(onDemand, "min: 0", "min: 1", 1))
		s.Start()
		harness.Eventually(t, harness.Long, "a sandbox is warm", func() bool {
			pools, err := s.Client.Pools(within(t))
			return err == nil && pools[0].Warm == 1
		})
		s.Term()
		s.Configure(strings.Replace(onDemand, "256MiB", "264MiB", 1))
		s.Begin(env)
	} else {
		s.Start(env)
		runLifecycle(t, s, ws)
	}
	state := s.Ended()
	if status, ok := state.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the server ended with %[2]s, want SIGKILL at %[1]s", point, state)
	}
}

// runLifecycle takes a sandbox through its life until the server dies.
func runLifecycle(t *testing.T, s *harness.Server, ws string) {
	t.Helper()
	ctx := within(t)
	sb, err := s.Client.CreateSandbox(ctx, v1.SandboxRequest{WhenEmpty: "cold", Workspace: ws})
	if err != nil {
		return
	}
	write := v1.Exec{Command: "while :; do echo x >> /workspace/log; sleep 0.01; done"}
	if _, err := s.Client.StartShell(ctx, sb.ID, v1.ShellRequest{Exec: write}); err != nil {
		return
	}
	if _, err := s.Client.Exec(ctx, sb.ID, v1.Exec{Command: "true"}); err != nil {
		return
	}
	_ = s.Client.RemoveSandbox(ctx, sb.ID) // the server dies here or has died
}

// awaitAccounted checks that host, engine and API agree on which sandboxes exist, and that nothing
// is left of others.
func awaitAccounted(t *testing.T, s *harness.Server) {
	t.Helper()
	harness.Eventually(t, harness.Long, "everything is accounted for", func() bool {
		why := unaccounted(t, s)
		if why != "" {
			t.Log(why) // printed only if the test fails
		}
		return why == ""
	})
}

// unaccounted describes the first difference that it finds, or returns "".
func unaccounted(t *testing.T, s *harness.Server) string {
	t.Helper()
	list, err := s.Client.Sandboxes(within(t), false)
	if err != nil {
		t.Fatal(err)
	}
	leased := make([]string, 0, len(list))
	for _, sb := range list {
		leased = append(leased, sb.ID)
	}
	slices.Sort(leased)
	if cells, engine := s.Cells(), s.Engine(); !slices.Equal(leased, cells) || !slices.Equal(leased, engine) {
		return fmt.Sprintf("leased %v, on disk %v, engine %v", leased, cells, engine)
	}
	for _, id := range s.Seen() {
		if left := s.Cgroups(id); len(left) > 0 && !slices.Contains(leased, id) {
			return fmt.Sprintf("cgroups of %s: %v", id, left)
		}
	}
	for _, m := range harness.MountsUnder(t, s.Dir()) {
		if strings.HasPrefix(m, filepath.Join(s.Dir(), "workspaces")+"/") && strings.HasSuffix(m, "/disk/mnt") {
			continue // a workspace's quota mount stays for a while after its last use; "down" removes it
		}
		if !slices.ContainsFunc(leased, func(id string) bool { return strings.Contains(m, id) }) {
			return "mount " + m
		}
	}
	return ""
}

// assertUsable releases what was leased, then uses the workspace and a new sandbox.
func assertUsable(t *testing.T, s *harness.Server, ws string) {
	t.Helper()
	ctx := within(t)
	list, err := s.Client.Sandboxes(ctx, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, sb := range list {
		// The sandbox works. If no caller got it before the crash, it has been removed.
		r, err := s.Client.Exec(ctx, sb.ID, v1.Exec{Command: "true"})
		if err != nil && !errdefs.IsNotFound(err) || err == nil && r.ExitCode != 0 {
			t.Errorf("Exec in sandbox %s = %+v, %v; want exit code 0 or not found", sb.ID, r, err)
		}
		release(t, s, sb.ID)
	}
	sb, err := s.Client.CreateSandbox(ctx, v1.SandboxRequest{WhenEmpty: "cold", Workspace: ws})
	if err != nil {
		t.Fatal(err)
	}
	if got := sh(t, s, sb.ID, "rm -f log; echo fine"); got != "fine\n" {
		t.Errorf("the new sandbox printed %q, want %q", got, "fine\n")
	}
	release(t, s, sb.ID)
}
