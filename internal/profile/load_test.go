package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

func builtins(tb testing.TB) *Set {
	tb.Helper()
	s, err := Builtin()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func load(t *testing.T, files map[string]string) (*Set, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := Load(dir)
	if err != nil {
		err = &stripped{err, dir + "/"}
	}
	return s, err
}

// stripped is an error whose text omits the directory.
type stripped struct {
	err error
	dir string
}

func (s *stripped) Error() string { return strings.ReplaceAll(s.err.Error(), s.dir, "") }
func (s *stripped) Unwrap() error { return s.err }

func TestBuiltin(t *testing.T) {
	s := builtins(t)
	c, err := s.Get("")
	if err != nil || c.Profile.Name != Default || c.Source != BuiltIn {
		t.Fatalf("Get(\"\") = %+v, %v; want the default profile", c, err)
	}
	for _, c := range s.List() {
		if len(c.Profile.Warnings) > 0 {
			t.Errorf("warnings of %s = %v, want none", c.Profile.Name, c.Profile.Warnings)
		}
	}
}

func TestGetUnknownProfile(t *testing.T) {
	_, err := builtins(t).Get("defalt")
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), `did you mean "default"?`) ||
		!strings.Contains(err.Error(), "known: ") {
		t.Errorf("Get = %v, want NotFound with a suggestion", err)
	}
}

func TestToolByName(t *testing.T) {
	c, err := builtins(t).Get(Default)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"system.bash", "system_bash"} {
		if tool, err := c.Tool(name); err != nil || tool.Name() != "system.bash" || tool.MCPName() != "system_bash" {
			t.Errorf("Tool(%s) = %v, want system.bash", name, err)
		}
	}
	if _, err := c.Tool("system.bahs"); !errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), `did you mean "system.bash"?`) {
		t.Errorf("Tool = %v, want NotFound with a suggestion", err)
	}
}
