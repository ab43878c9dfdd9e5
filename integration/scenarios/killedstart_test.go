//go:build integration && faults

package scenarios

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// temporary matches file names that exist only while a process runs.
var temporary = regexp.MustCompile(`^\.(state|disk|doctor|build|probe|guest|launch|new|gone)-|\.new$`)

// temporaryFiles lists such names in the state directory, and loop devices of deleted files there.
func temporaryFiles(t *testing.T, dir string) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // the service removes files during the walk
		}
		if temporary.MatchString(d.Name()) {
			left = append(left, path)
		}
		if rel, _ := filepath.Rel(dir, path); rel == "images/roots" || d.Name() == "content" {
			return fs.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		text, _ := os.ReadFile(file)
		if name := strings.TrimSpace(string(text)); strings.HasPrefix(name, dir+"/") && strings.HasSuffix(name, "(deleted)") {
			left = append(left, file+": "+name)
		}
	}
	return left
}

// startFailpoints returns the failpoints of a start, separated by whether only the first start of a
// state directory reaches them.
func startFailpoints(t *testing.T, runtime string) (first, later []string) {
	t.Helper()
	for _, p := range allFailpoints(t) {
		switch {
		case !strings.HasPrefix(p, "start."), p == "start.overlay.mounted" && runtime != "oci":
		case p == "start.guest.made":
			first = append(first, p)
		case p == "start.owner.written", p == "start.state.made", strings.HasPrefix(p, "start.mark."):
			first, later = append(first, p), append(later, p)
		default:
			later = append(later, p)
		}
	}
	if len(first) < 4 || len(later) < 8 {
		t.Fatalf("failpoints of a start = %v and %v, want at least 4 and 8", first, later)
	}
	return first, later
}

// assertKilledAt checks that the started server is killed at the point.
func assertKilledAt(t *testing.T, s *harness.Server, point string) {
	t.Helper()
	if strings.HasPrefix(point, "start.probe.") {
		s.Ready()
		_, _ = s.Client.Workspaces.Create(within(t), "probed-"+strings.ReplaceAll(point, ".", "-")) // the server dies
	}
	state := s.Ended()
	if status, ok := state.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the server ended with %[2]s, want SIGKILL at %[1]s", point, state)
	}
}

// assertClean waits until sandboxes, mounts and temporary files of the killed server are removed.
func assertClean(t *testing.T, s *harness.Server) {
	t.Helper()
	awaitAccounted(t, s)
	harness.Eventually(t, harness.Short, "nothing temporary is left", func() bool {
		left := temporaryFiles(t, s.Dir())
		if len(left) > 0 {
			t.Log(left) // printed only if the test fails
		}
		return len(left) == 0
	})
}

// TestKilledStartIsRecovered kills the server at each step of a start. The next start must succeed
// with the previous state and leave nothing of the killed one.
func TestKilledStartIsRecovered(t *testing.T) {
	t.Parallel()
	onRuntimes(t, func(t *testing.T, name string) {
		options := harness.Options{Runtime: name, Bin: harness.Need(t, harness.EnvFaults), Config: onDemand, Seed: &seed}
		first, later := startFailpoints(t, name)
		for _, point := range first {
			t.Run("first "+point, func(t *testing.T) {
				s := harness.New(t, options)
				s.Begin("ORCHESTRATOR_FAULT=" + point)
				assertKilledAt(t, s, point)
				s.Start()
				assertClean(t, s)
			})
		}
		s := harness.New(t, options)
		s.Start()
		u := newUsedSandbox(t, s, workspace(t, s))
		for _, point := range later {
			ok := t.Run(point, func(t *testing.T) {
				defer s.For(t)()
				s.Kill9()
				lost := point == "start.remains.removed"
				if lost {
					all := slices.Clone(stateFiles)
					erase(t, s.Dir(), slices.DeleteFunc(all, func(name string) bool { return name == "owner.json" })...)
					s.With("--adopt-none")
				}
				s.Begin("ORCHESTRATOR_FAULT=" + point)
				assertKilledAt(t, s, point)
				if lost {
					s.With("--adopt-none")
				}
				s.Start()
				assertClean(t, s)
				if !lost {
					u.assertRunning(t, s)
					return
				}
				u.assertGone(t, s)
				u.assertFileKept(t, s)
				u = newUsedSandbox(t, s, u.workspace)
			})
			if !ok {
				break // the next point would start with what this one left
			}
		}
	})
}
