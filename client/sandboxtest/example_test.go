package sandboxtest_test

import (
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"

	"github.com/sandbox-orchestrator/orchestrator/client/sandboxtest"
)

// Test a script in a sandbox with a copy of a local directory.
func ExampleNew() {
	_ = func(t *testing.T) {
		sb := sandboxtest.New(t, sandboxtest.Options{
			Workspace: "testdata/project",
			Files:     map[string]string{"input.txt": "6 7\n"},
			Skip:      testing.Short(),
		})
		if got := sb.Must("python3 multiply.py < input.txt"); got != "42\n" {
			t.Errorf("multiply.py = %q, want %q", got, "42\n")
		}
	}
}

// Check how a command ends.
func ExampleSandbox_Exec() {
	_ = func(t *testing.T) {
		sb := sandboxtest.New(t)
		r := sb.Exec(v1.Exec{Argv: []string{"sleep", "60"}, TimeoutMS: 100})
		if r.Ending != "timeout" {
			t.Errorf("Exec(sleep 60).Ending = %q, want %q", r.Ending, "timeout")
		}
	}
}

// Keep a shell's state between commands.
func ExampleSandbox_Session() {
	_ = func(t *testing.T) {
		session := sandboxtest.New(t).Session()
		if _, err := session.Run(t.Context(), "export MODE=debug"); err != nil {
			t.Fatal(err)
		}
		r, err := session.Run(t.Context(), "echo $MODE")
		if err != nil || r.Stdout != "debug\n" {
			t.Errorf("Run(echo $MODE) = %q, %v; want %q", r.Stdout, err, "debug\n")
		}
	}
}
