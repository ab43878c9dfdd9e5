//go:build faults

package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/failpoint"
)

// runChild runs one operation if this process is the child of a test. It dies at a failpoint.
func runChild() {
	what := os.Getenv("VOLUMES_CHILD")
	if what == "" {
		return
	}
	ctx := context.Background()
	m, err := Open(os.Getenv("VOLUMES_DIR"),
		Options{Mechanism: os.Getenv("VOLUMES_MECHANISM"), Quota: 8 << 20, Snapshots: 4})
	if err == nil && what != "overlay" {
		err = m.Sweep(ctx)
	}
	if err == nil {
		switch what {
		case "commit":
			_, err = m.Commit(ctx, "o", CommitOptions{})
		case "part":
			_, err = m.Commit(ctx, "o", CommitOptions{Paths: []string{"a", "n"}})
		case "overlay":
			var h *Hold
			if h, err = m.Acquire(ctx, "w", "p", Overlaid); err == nil {
				err = os.WriteFile(h.Binding().Source+"/p", []byte("p"), 0o644)
				h.Release()
			}
		case "discard":
			err = m.Discard(ctx, "o")
		case "snapshot":
			_, err = m.Snapshot(ctx, "w", "s")
		case "restore":
			_, err = m.Restore(ctx, "w", "before")
		}
	}
	fmt.Fprintln(os.Stderr, "not killed:", err)
	os.Exit(3)
}

// kill runs an operation in a child process that dies at a failpoint.
func kill(t *testing.T, m *Manager, what, point string) {
	t.Helper()
	must(t, m.Close())
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "VOLUMES_CHILD="+what, "VOLUMES_DIR="+m.dir, "VOLUMES_MECHANISM="+m.opts.Mechanism,
		failpoint.Env+"="+point)
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("%s at %s = %v, want SIGKILL: %s", what, point, err, out)
	}
}

// A commit that is killed at any step is complete or has no effect. The next start removes its
// leftovers, and repeating it is harmless.
func TestCommitKilledIsAtomic(t *testing.T) {
	for _, mechanism := range []string{"", Auto} {
		for _, what := range []string{"commit", "part"} {
			for point, done := range map[string]bool{
				"volumes.commit.built": false, "volumes.generation.made": false, "volumes.generation.current": true,
				"volumes.commit.done": true, "volumes.overlay.removed": true,
			} {
				if what == "part" && point == "volumes.overlay.removed" {
					continue
				}
				t.Run(strings.Join([]string{mechanism, what, point}, " "), func(t *testing.T) {
					m := world(t, Options{Mechanism: mechanism, Quota: 8 << 20},
						map[string]string{"a": "base", "b": "base", "gone": "base"})
					o := hold(t, m, "o", Overlaid)
					write(t, o, "a", "mine")
					write(t, o, "n", "mine")
					remove(t, o, "gone")
					o.Release()
					kill(t, m, what, point)
					m = start(t, m.dir, m.opts)
					must(t, m.Sweep(t.Context()))
					want := map[string]string{"a": "base", "n": "-", "gone": "base"}
					if done {
						want = map[string]string{"a": "mine", "n": "mine", "gone": "-"}
						if what == "part" {
							want["gone"] = "base"
						}
					}
					checkNow(t, m, want)
					oneGeneration(t, m)
					if _, err := m.FindOverlay("o"); err == nil {
						commit(t, m, "o")
					} else if !done || what == "part" {
						t.Errorf("FindOverlay(o): %v, want it to exist", err)
					}
					checkNow(t, m, map[string]string{"a": "mine", "n": "mine", "b": "base"})
					oneGeneration(t, m)
				})
			}
		}
	}
}

func TestOverlayKilledIsRecovered(t *testing.T) {
	for _, point := range []string{"volumes.overlay.noted", "volumes.overlay.made", "volumes.overlay.mounted",
		"volumes.overlay.unmounted", "volumes.overlay.kept"} {
		t.Run(point, func(t *testing.T) {
			m := world(t, Options{Mechanism: Auto, Quota: 8 << 20}, map[string]string{"a": "base"})
			kill(t, m, "overlay", point)
			m = start(t, m.dir, m.opts)
			must(t, m.Sweep(t.Context()))
			written := strings.HasSuffix(point, "unmounted") || strings.HasSuffix(point, "kept")
			list, err := m.Overlays("w")
			if must(t, err); written != (len(list) == 1) || written && (list[0].Live || list[0].Changes != 1) {
				t.Errorf("Overlays(w) = %+v, want one ended overlay: %v", list, written)
			}
			checkNow(t, m, map[string]string{"a": "base"})
			oneGeneration(t, m)
			must(t, m.Close())
			unmounted(t, m.dir)
		})
	}
}

func TestRestoreKilledIsAtomic(t *testing.T) {
	for _, mechanism := range []string{"", Auto} {
		for what, points := range map[string][]string{"restore": {"volumes.restore.copied", "volumes.restore.swapped"},
			"snapshot": {"volumes.snapshot.copied"}, "discard": {"volumes.overlay.removed"}} {
			for _, point := range points {
				t.Run(mechanism+" "+point, func(t *testing.T) {
					m := world(t, Options{Mechanism: mechanism, Quota: 8 << 20, Snapshots: 4}, map[string]string{"a": "old"})
					_, err := m.Snapshot(t.Context(), "w", "before")
					must(t, err)
					rw := hold(t, m, "rw", ReadWrite)
					write(t, rw, "a", "new")
					rw.Release()
					if what == "discard" {
						overlaid(t, m, "o", map[string]string{"a": "mine"})
					}
					kill(t, m, what, point)
					m = start(t, m.dir, m.opts)
					must(t, m.Sweep(t.Context()))
					want := "new"
					if point == "volumes.restore.swapped" {
						want = "old"
					}
					checkNow(t, m, map[string]string{"a": want})
					if _, err := m.FindOverlay("o"); err == nil {
						must(t, m.Discard(t.Context(), "o"))
					}
					if s, err := m.Snapshots("w"); err != nil || len(s) != 1 {
						t.Errorf("Snapshots(w) = %+v, %v; want 1", s, err)
					}
					_, err = m.Restore(t.Context(), "w", "before")
					must(t, err)
					checkNow(t, m, map[string]string{"a": "old"})
					oneGeneration(t, m)
				})
			}
		}
	}
}

// After a power cut, a workspace's file system and the directory with its metadata can be of
// different times. The metadata must not name files that are missing.
func TestCommitSurvivesPowerCut(t *testing.T) {
	for _, point := range []string{"volumes.generation.made", "volumes.generation.current", "volumes.commit.done"} {
		t.Run(point, func(t *testing.T) {
			m := world(t, Options{Mechanism: Auto, Quota: 8 << 20}, map[string]string{"a": "base"})
			overlaid(t, m, "o", map[string]string{"a": "mine", "n": "mine"})
			kill(t, m, "commit", point)
			dir, _ := m.diskPath(m.byName["w"].meta)
			image, cut := filepath.Join(dir, "disk.img"), filepath.Join(t.TempDir(), "cut")
			run := func(argv ...string) {
				t.Helper()
				out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
				if err != nil {
					t.Fatalf("command %q: %v: %s", argv, err, out)
				}
			}
			run("cp", "--sparse=always", image, cut) // Data that the kernel has not written back is lost.
			must(t, m.UnmountUnused(t.Context()))
			run("cp", "--sparse=always", cut, image)
			m = start(t, m.dir, m.opts)
			must(t, m.Sweep(t.Context()))
			want := "mine"
			if point == "volumes.generation.made" {
				want = "base"
			}
			checkNow(t, m, map[string]string{"a": want})
			if _, err := m.FindOverlay("o"); err == nil {
				commit(t, m, "o")
			}
			checkNow(t, m, map[string]string{"a": "mine", "n": "mine"})
			oneGeneration(t, m)
		})
	}
}
