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

// temporaries lists such names in the state directory, and loop devices of deleted files there.
func temporaries(t *testing.T, dir string) []string {
	t.Helper()
	var left []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // others come and go
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

// startPoints returns the failpoints of a start, separated by whether only the first start of a
// state directory reaches them.
func startPoints(t *testing.T, runtime string) (first, later []string) {
	t.Helper()
	for _, p := range allPoints(t) {
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
		t.Fatalf("only %v and %v", first, later)
	}
	return first, later
}

// dies checks that the started server is killed at the point.
func dies(t *testing.T, s *harness.Server, point string) {
	t.Helper()
	if strings.HasPrefix(point, "start.probe.") {
		s.Ready()
		_, _ = s.Client.CreateWorkspace(within(t), "probed-"+strings.ReplaceAll(point, ".", "-")) // the connection breaks
	}
	state := s.Ended()
	if status, ok := state.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("it was to die at %s and ended with %s", point, state)
	}
}

func clean(t *testing.T, s *harness.Server) {
	t.Helper()
	accounted(t, s)
	harness.Eventually(t, harness.Short, "nothing temporary is left", func() bool {
		left := temporaries(t, s.Dir())
		if len(left) > 0 {
			t.Log(left) // shown only if the test fails
		}
		return len(left) == 0
	})
}

// TestKilledStart kills the server at each step of a start. The next start must succeed with the
// previous state and leave nothing of the killed one.
func TestKilledStart(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, name string) {
		options := harness.Options{Runtime: name, Bin: harness.Need(t, harness.EnvFaults), Config: onDemand, Seed: &seed}
		first, later := startPoints(t, name)
		for _, point := range first {
			t.Run("first "+point, func(t *testing.T) {
				s := harness.New(t, options)
				s.Begin("ORCHESTRATOR_FAULT=" + point)
				dies(t, s, point)
				s.Start()
				clean(t, s)
			})
		}
		s := harness.New(t, options)
		s.Start()
		u := begin(t, s, workspace(t, s))
		for _, point := range later {
			ok := t.Run(point, func(t *testing.T) {
				defer s.For(t)()
				s.Kill9()
				lost := point == "start.remains.removed"
				if lost {
					erase(t, s.Dir(), slices.DeleteFunc(slices.Clone(stateFiles), func(name string) bool { return name == "owner.json" })...)
					s.With("--adopt-none")
				}
				s.Begin("ORCHESTRATOR_FAULT=" + point)
				dies(t, s, point)
				if lost {
					s.With("--adopt-none")
				}
				s.Start()
				clean(t, s)
				if !lost {
					u.goesOn(t, s)
					return
				}
				u.over(t, s)
				u.keptFile(t, s)
				u = begin(t, s, u.workspace)
			})
			if !ok {
				break // the next scenario would start in the middle of this one
			}
		}
	})
}
