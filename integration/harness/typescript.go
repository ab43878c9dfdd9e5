package harness

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TypeScript is a directory with the packages of integration/typescript and what Build made there.
type TypeScript struct {
	dir string
}

// NewTypeScript installs the packages once, in the cache, and copies the sources to a directory.
// scripts is the path of integration/scripts.
func NewTypeScript(tb testing.TB, scripts string) *TypeScript {
	tb.Helper()
	install := exec.Command(filepath.Join(scripts, "typescript.sh"))
	install.Stderr = os.Stderr
	out, err := install.Output()
	if err != nil {
		tb.Fatalf("install the npm packages: %v (see above)", err)
	}
	ts := &TypeScript{dir: TempDir(tb)}
	from := filepath.Join(scripts, "..", "typescript")
	for _, name := range []string{"package.json", "tsconfig.json", "redocly.yaml"} {
		b, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			tb.Fatal(err)
		}
		WriteFile(tb, filepath.Join(ts.dir, name), string(b))
	}
	if err := os.CopyFS(filepath.Join(ts.dir, "src"), os.DirFS(filepath.Join(from, "src"))); err != nil {
		tb.Fatal(err)
	}
	packages := filepath.Join(strings.TrimSpace(string(out)), "node_modules")
	if err := os.Symlink(packages, filepath.Join(ts.dir, "node_modules")); err != nil {
		tb.Fatal(err)
	}
	return ts
}

// Path returns the path of a file in the directory.
func (ts *TypeScript) Path(name string) string { return filepath.Join(ts.dir, name) }

// Tool runs a program of the packages in the directory, and returns what it printed.
func (ts *TypeScript) Tool(tb testing.TB, name string, args ...string) (string, error) {
	tb.Helper()
	return ts.run(tb, filepath.Join("node_modules", ".bin", name), args...)
}

// Node runs a program that Build made, and returns what it printed.
func (ts *TypeScript) Node(tb testing.TB, program string, args ...string) (string, error) {
	tb.Helper()
	return ts.run(tb, filepath.Join("out", program), args...)
}

func (ts *TypeScript) run(tb testing.TB, program string, args ...string) (string, error) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*Long)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", append([]string{program}, args...)...)
	cmd.Dir = ts.dir
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "ORCHESTRATOR_") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "REDOCLY_TELEMETRY=off", "REDOCLY_SUPPRESS_UPDATE_NOTICE=true")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Build checks the types of the given sources and compiles them.
func (ts *TypeScript) Build(tb testing.TB, sources ...string) {
	tb.Helper()
	WriteFile(tb, ts.Path("build.json"), `{"extends": "./tsconfig.json", "include": ["src/`+
		strings.Join(sources, `", "src/`)+`"]}`)
	if out, err := ts.Tool(tb, "tsc", "-p", "build.json"); err != nil {
		tb.Fatalf("tsc: %v\n%s", err, out)
	}
}
