//go:build integration

package sandboxtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutsideModule follows docs/ci.md in a module of its own: its go.mod, its test, and the
// commands.
func TestOutsideModule(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(root, "docs", "ci.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(root, filepath.Join(dir, "orchestrator")); err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(dir, "yours")
	for name, text := range map[string]string{
		"go.mod":                   codeBlock(t, string(doc), "module example.com/yours\n"),
		"yours_test.go":            codeBlock(t, string(doc), "package yours\n"),
		"testdata/project/main.py": "print(42)\n",
	} {
		path := filepath.Join(module, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"mod", "tidy"}, {"vet", "./..."}, {"test", "-count=1", "-v", "./..."}} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = module
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		if args[0] == "test" && !strings.Contains(string(out), "--- PASS: TestScript") {
			t.Errorf("go test did not run TestScript, want it passed:\n%s", out)
		}
	}
}

// codeBlock returns the code block of a Markdown document whose text starts with beginning.
func codeBlock(t *testing.T, doc, beginning string) string {
	t.Helper()
	_, rest, found := strings.Cut(doc, "\n"+beginning)
	text, _, closed := strings.Cut(rest, "\n```\n")
	if !found || !closed {
		t.Fatalf("docs/ci.md has no code block that starts with %q", beginning)
	}
	return beginning + text + "\n"
}
