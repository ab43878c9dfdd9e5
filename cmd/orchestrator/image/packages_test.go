package image

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/standalone"
	"github.com/sandbox-orchestrator/orchestrator/internal/scratch"
)

// A killed build leaves its root filesystem; a running one must keep its own.
func TestSweepBuildsRemovesKilledBuilds(t *testing.T) {
	state := t.TempDir()
	live, err := scratch.Make(state, standalone.BuildPrefix)
	if err != nil {
		t.Fatal(err)
	}
	dead := filepath.Join(state, standalone.BuildPrefix+"dead")
	if err := os.MkdirAll(filepath.Join(dead, "root", "etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // it is idempotent
		if err := standalone.SweepBuilds(state); err != nil {
			t.Fatal(err)
		}
	}
	for dir, want := range map[string]bool{live.Path: true, dead: false} {
		if _, err := os.Stat(dir); (err == nil) != want {
			t.Errorf("%s exists: %v, want %v", filepath.Base(dir), err == nil, want)
		}
	}
	if err := live.Remove(); err != nil {
		t.Error(err)
	}
}
