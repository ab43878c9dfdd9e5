//go:build integration

package scenarios

import (
	"regexp"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestFirstStartNamesTheImport starts a server without an image, and runs the command that it
// prints.
func TestFirstStartNamesTheImport(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{Runtime: "oci", Config: onDemand})
	s.Begin()
	advice := regexp.MustCompile("template default is not ready: .*: run `orchestrator (image import [^`]+)`")
	harness.Eventually(t, harness.Long, "the server says what to run", func() bool { return advice.MatchString(s.Log()) })
	command := advice.FindStringSubmatch(s.Log())[1]
	if strings.Contains(command, "$(") {
		command = strings.Replace(command, `"$(make -s image)"`, harness.Need(t, harness.EnvArchive), 1)
	}
	s.CLI(t, strings.Fields(command)...).Is(t, 0, "")
	s.Ready()
	got := s.CLI(t, "run", "-c", "echo $((6*7))")
	if got.Is(t, 0, ""); got.Stdout != "42\n" {
		t.Errorf("run after the import printed %q, want 42", got.Stdout)
	}
}
