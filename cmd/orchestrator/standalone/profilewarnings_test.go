//go:build linux

package standalone

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

func TestProfileSettingsWithoutEffectAreLogged(t *testing.T) {
	dir := t.TempDir()
	text := `{"tools": {"sandbox": {"memoryLimit": "4g", "volumeMounts": {"/a": "/b"}}}}`
	if err := os.WriteFile(filepath.Join(dir, "team.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	set, err := LoadProfiles(dir)
	if err != nil {
		t.Fatalf("LoadProfiles() = %v, want no error", err)
	}
	logged := func(memory config.Size) string {
		var out bytes.Buffer
		warnOfProfiles(slog.New(slog.NewTextHandler(&out, nil)), set, map[string]config.Template{
			"small": {}, "large": {Limits: config.Limits{Memory: memory}},
		})
		return out.String()
	}
	got := logged(2 << 30)
	for _, want := range []string{"tools.sandbox.volumeMounts", "tool=bash bytes=4294967296 template_bytes=2147483648"} {
		if strings.Count(got, want) != 1 {
			t.Errorf("the log is\n%swant %q in it once", got, want)
		}
	}
	if got := logged(4 << 30); strings.Contains(got, "tool=bash") {
		t.Errorf("the log is\n%swant no word about memory, because a template has as much", got)
	}
}
