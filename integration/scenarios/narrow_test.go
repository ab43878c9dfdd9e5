//go:build integration

package scenarios

import (
	"strings"
	"testing"
	"unicode/utf8"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// TestTablesFit80Columns runs every command with a table in a terminal of 80x24. No line wraps, and
// the ids that it shows are accepted.
func TestTablesFit80Columns(t *testing.T) {
	t.Parallel()
	s := harness.Run(t, harness.Options{Runtime: "oci", Config: onDemand, Seed: &seed})
	notes := workspace(t, s)
	web := lease(t, s, v1.SandboxRequest{Name: "web", Workspace: notes, Labels: map[string]string{"team": "a"}})
	lease(t, s, v1.SandboxRequest{})
	shell := s.CLI(t, "shell", "start", "-q", "web", "--", "sleep", "1000")
	shell.Is(t, 0, "")
	callerToken(t, s, `{"caller":"ann","trust":3,"note":"the token of a caller with a long description, for this test"}`)
	s.CLI(t, "tool", "call", "system.bash", "command=true").Is(t, 0, "")
	for _, c := range []struct{ args, want string }{
		{"ps", "web"}, {"ps --all", "web"}, {"sandbox ls", "web"}, {"sandbox inspect web", "IDLE LIMIT"},
		{"top --once", web.ID[:13]}, {"pool", "WARM"}, {"shell ls web", "sleep 1000"}, {"image ls", "orchestrator/sandbox:latest"},
		{"tool ls", "system.bash"}, {"template ls", "default"}, {"workspace ls", notes}, {"token ls", "ann"},
		{"audit ls --limit 5", "ann|local"}, {"profile ls", "Built-in tools"}, {"doctor", "runtime docker"}, {"job ls", "JOB"},
		{"approvals ls", "ID"}, {"version", "exit code 0"}, {"workspace overlays " + notes, "SANDBOX"},
	} {
		screen := newTmuxOf(t, s, "80", "60", strings.Fields(c.args)...)
		screen.sees(`exit code [01]\.`)
		shown := screen.shown()
		for line := range strings.Lines(shown) { // lines that wrapped are joined
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
				t.Errorf("%s: a line of %d characters wraps: %q", c.args, n, line)
			}
		}
		found := false
		for want := range strings.SplitSeq(c.want, "|") {
			found = found || strings.Contains(shown, want)
		}
		if !found {
			t.Errorf("%s shows %q, want it to have %q", c.args, shown, c.want)
		}
	}

	id := strings.TrimSpace(shell.Stdout)
	for _, args := range [][]string{
		{"exec", "web", "--", "true"}, {"exec", web.ID[:13], "--", "true"}, {"sandbox", "inspect", web.ID[:13]},
		{"shell", "ls", "web"}, {"shell", "logs", id[:13]}, {"shell", "kill", id[:13]},
		{"tool", "call", "--sandbox", "web", "system.bash", "command=true"},
	} {
		s.CLI(t, args...).Is(t, 0, "")
	}
	s.CLI(t, "exec", web.ID[:4], "--", "true").Is(t, 64, "of your sandboxes begin with it: give more of its characters")
	s.CLI(t, "sandbox", "create", "--name", "web").Is(t, 73, `name "web" is taken by another of your sandboxes`)
	if got := s.CLI(t, "ps", "--format", "{{.Name}} {{.ID}}"); !strings.Contains(got.Stdout, "web "+web.ID+"\n") {
		t.Errorf("ps --format printed %q, want web and its whole id", got.Stdout)
	}
	s.CLI(t, "ps", "--format", "{{.Nope}}").Is(t, 64, "unknown field .Nope: use .ID")
	s.CLI(t, "ps", "--format", "{{").Is(t, 64, "use json or a Go template")
}
