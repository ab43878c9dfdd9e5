package scratch

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestSweepRemovesUnlockedDirectoriesOnly(t *testing.T) {
	parent := t.TempDir()
	used, err := Make(parent, ".t-")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{".t-left/sub", ".other"} {
		if err := os.MkdirAll(filepath.Join(parent, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(parent, ".t-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var cleared []string
	undo := func(dir string) error { cleared = append(cleared, filepath.Base(dir)); return nil }
	if err := Sweep(parent, ".t-", undo); err != nil {
		t.Fatal(err)
	}
	if got := names(t, parent); len(got) != 3 {
		t.Errorf("after Sweep there are %v, want .other, .t-file and %s", got, filepath.Base(used.Path))
	}
	if len(cleared) != 1 || cleared[0] != ".t-left" {
		t.Errorf("Sweep cleared %v, want .t-left", cleared)
	}
	if err := used.Remove(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, parent); len(got) != 2 {
		t.Errorf("after Remove there are %v, want .other and .t-file", got)
	}
}

func TestSweepKeepsUnremovableDirectories(t *testing.T) {
	parent := t.TempDir()
	if err := os.Mkdir(filepath.Join(parent, ".t-1"), 0o700); err != nil {
		t.Fatal(err)
	}
	busy := errors.New("busy")
	if err := Sweep(parent, ".t-", func(string) error { return busy }); !errors.Is(err, busy) {
		t.Errorf("Sweep() = %v, want %v", err, busy)
	}
	if got := names(t, parent); len(got) != 1 {
		t.Errorf("after Sweep there are %v, want .t-1", got)
	}
}

func TestSweepKeepsSharedParent(t *testing.T) {
	parent := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(parent, ".t-1"), 0o700), os.Chmod(parent, 0o1777)); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(parent, ".t-", nil); err != nil {
		t.Fatal(err)
	}
	if got := names(t, parent); len(got) != 1 {
		t.Errorf("after Sweep there are %v, want .t-1", got)
	}
}

func TestSweepOfMissingParent(t *testing.T) {
	if err := Sweep(filepath.Join(t.TempDir(), "none"), ".t-", nil); err != nil {
		t.Errorf("Sweep() = %v, want nil", err)
	}
}

func TestMakeDuringSweep(t *testing.T) {
	parent := t.TempDir()
	var makers, sweeper sync.WaitGroup
	stop := make(chan struct{})
	sweeper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := Sweep(parent, ".t-", nil); err != nil {
				t.Error(err)
			}
		}
	})
	for range 4 {
		makers.Go(func() {
			for range 200 {
				d, err := Make(parent, ".t-")
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(filepath.Join(d.Path, "file"), nil, 0o600); err != nil {
					t.Errorf("a directory in use was removed: %v", err)
				}
				if err := d.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	makers.Wait()
	close(stop)
	sweeper.Wait()
	if got := names(t, parent); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}
