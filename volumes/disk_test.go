package volumes

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// The quota includes overlays and commits. A full workspace can still be read, and written again
// after a discard.
func TestQuotaIncludesOverlays(t *testing.T) {
	m := world(t, Options{Mechanism: Auto, Quota: 8 << 20, MaxQuota: 32 << 20, Snapshots: 4},
		map[string]string{"a": "base"})
	if mechanism, why := m.Mechanism(); mechanism == quotadir.None {
		t.Fatalf("Mechanism() = none, want a quota: %s", why)
	}
	o := hold(t, m, "o", Overlaid)
	err := os.WriteFile(filepath.Join(o.Binding().Source, "big"), make([]byte, 16<<20), 0o644)
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		t.Errorf("write of 16 MiB with a quota of 8 = %v, want ENOSPC or EDQUOT", err)
	}
	write(t, o, "a", "") // as much as fits
	o.Release()
	w, err := m.Get("w")
	if must(t, err); w.QuotaBytes != 8<<20 || w.UsedBytes < 6<<20 {
		t.Errorf("Get(w) = %+v, want quota %d and at least 6 MiB used", w, 8<<20)
	}
	if d, err := m.Diff(t.Context(), "o", DiffOptions{Text: true}); err != nil || len(d.Changes) != 2 {
		t.Errorf("Diff(o) = %+v, %v; want 2 changes", d, err)
	}
	must(t, m.Discard(t.Context(), "o"))
	rw := hold(t, m, "rw", ReadWrite)
	write(t, rw, "b", strings.Repeat("x", 4<<20))
	rw.Release()
	if _, err := m.Resize(t.Context(), "w", 64<<20); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Resize beyond the maximum = %v, want InvalidArgument", err)
	}
	_, err = m.Resize(t.Context(), "w", 32<<20)
	must(t, err)
	overlaid(t, m, "big", map[string]string{"c": strings.Repeat("y", 12<<20)})
	commit(t, m, "big") // uses no extra space
	if w, err := m.Get("w"); err != nil || w.QuotaBytes != 32<<20 || w.UsedBytes > 20<<20 {
		t.Errorf("Get(w) = %+v, %v; want quota %d and at most 20 MiB used", w, err, 32<<20)
	}
}

// unmounted fails the test if something is mounted below dir.
func unmounted(t *testing.T, dir string) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range bytes.Lines(b) {
		if bytes.Contains(line, []byte(dir)) {
			t.Errorf("mounted: %s, want no mount below %s", line, dir)
		}
	}
}

func TestIdleAndDownUnmountAll(t *testing.T) {
	m := world(t, Options{Mechanism: Auto, Quota: 4 << 20, Idle: time.Minute}, nil)
	h := hold(t, m, "o", Overlaid)
	write(t, h, "a", "a")
	m.tick(t.Context(), time.Now().Add(time.Hour))
	checkRead(t, h, "a", "a")
	must(t, m.Close()) // hand-over to a new process
	again := start(t, m.dir, m.opts)
	h = hold(t, again, "o", Overlaid)
	must(t, again.Sweep(t.Context()))
	checkRead(t, h, "a", "a")
	h.Release()
	again.tick(t.Context(), time.Now().Add(30*time.Second))
	again.tick(t.Context(), time.Now().Add(time.Hour))
	unmounted(t, m.dir)
	h = hold(t, again, "p", Overlaid)
	write(t, h, "a", "a")
	must(t, again.Down(t.Context()))
	unmounted(t, m.dir)
	if list, _ := again.Overlays("w"); len(list) != 2 {
		t.Errorf("Overlays(w) = %+v, want 2", list)
	}
}

// A container that is being created clones every mount. On a busy host that lasts longer than an
// unmount waits.
func TestDownWaitsForMountClone(t *testing.T) {
	m := world(t, Options{Mechanism: Auto, Quota: 4 << 20, Idle: time.Minute}, nil)
	h := hold(t, m, "o", ReadWrite)
	write(t, h, "a", "a")
	clone := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo made; sleep 6")
	made, err := clone.StdoutPipe()
	must(t, err)
	must(t, clone.Start())
	_, err = made.Read(make([]byte, 5))
	must(t, err)
	must(t, m.Down(t.Context()))
	unmounted(t, m.dir)
	must(t, clone.Wait())
}

// copySnapshot creates a workspace "copy" from a snapshot of "w". Both must have text at "a", and a
// write to one must not change the other.
func copySnapshot(t *testing.T, m *Manager, label, text string) {
	t.Helper()
	_, err := m.Create(t.Context(), "copy", CreateOptions{FromName: "w", From: label})
	must(t, err)
	h, err := m.Acquire(t.Context(), "copy", "c", ReadWrite)
	must(t, err)
	checkRead(t, h, "a", text)
	write(t, h, "a", "copy")
	h.Release()
	checkNow(t, m, map[string]string{"a": text})
}

func TestSnapshotRestoreRoundTrip(t *testing.T) {
	for _, mechanism := range []string{"", Auto} {
		t.Run("mechanism "+mechanism, func(t *testing.T) {
			m := world(t, Options{Mechanism: mechanism, Quota: 8 << 20, Snapshots: 2},
				map[string]string{"a": "old", "d/b": "old"})
			overlaid(t, m, "o", map[string]string{"a": "old2"})
			commit(t, m, "o") // so that the current generation is not the first
			s, err := m.Snapshot(t.Context(), "w", "before")
			must(t, err)
			rw := hold(t, m, "rw", ReadWrite)
			write(t, rw, "a", "new")
			remove(t, rw, "d")
			if _, err := m.Snapshot(t.Context(), "w", ""); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Snapshot below a lease = %v, want FailedPrecondition", err)
			}
			if _, err := m.Restore(t.Context(), "w", s.ID); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Restore below a lease = %v, want FailedPrecondition", err)
			}
			rw.Release()
			if _, err := m.Snapshot(t.Context(), "w", "before"); !errdefs.IsAlreadyExists(err) {
				t.Errorf("second Snapshot with a label = %v, want AlreadyExists", err)
			}
			_, err = m.Snapshot(t.Context(), "w", "")
			must(t, err)
			if _, err := m.Snapshot(t.Context(), "w", ""); !errdefs.IsResourceExhausted(err) {
				t.Errorf("Snapshot beyond the maximum = %v, want ResourceExhausted", err)
			}
			overlaid(t, m, "p", map[string]string{"a": "mine"})
			if _, err := m.Restore(t.Context(), "w", "before"); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("Restore below an overlay = %v, want FailedPrecondition", err)
			}
			must(t, m.Discard(t.Context(), "p"))
			if mechanism == Auto {
				_, err = m.Resize(t.Context(), "w", 16<<20)
				must(t, err)
			}
			for range 2 {
				_, err = m.Restore(t.Context(), "w", "before")
				must(t, err)
				checkNow(t, m, map[string]string{"a": "old2", "d/b": "old"})
			}
			if w, err := m.Get("w"); err != nil || mechanism == Auto && w.QuotaBytes != 16<<20 || w.Snapshots != 2 {
				t.Errorf("Get(w) = %+v, %v; want quota 16 MiB and 2 snapshots", w, err)
			}
			copySnapshot(t, m, "before", "old2")
			must(t, m.RemoveSnapshot(t.Context(), "w", "before"))
			if _, err := m.Restore(t.Context(), "w", s.ID); !errdefs.IsNotFound(err) {
				t.Errorf("Restore of a removed snapshot: %v, want NotFound", err)
			}
			oneGeneration(t, m)
			must(t, m.Delete(t.Context(), "copy"))
			must(t, m.Delete(t.Context(), "w"))
		})
	}
}

// A workspace of an earlier version has no disk.
func TestEarlierVersionWorkspaceIsUsable(t *testing.T) {
	needRoot(t)
	dir := filepath.Join(t.TempDir(), "workspaces")
	const id = "0198f0a0-0000-7000-8000-000000000000"
	must(t, os.MkdirAll(filepath.Join(dir, id), 0o700))
	must(t, makeData(filepath.Join(dir, id, dataDir)))
	must(t, os.WriteFile(filepath.Join(dir, id, dataDir, "a"), []byte("old"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, id, metaFile),
		[]byte(`{"version":1,"id":"`+id+`","name":"w","created_at":"2026-01-01T00:00:00Z","shared":false}`+"\n"), 0o600))
	m := start(t, dir, Options{Mechanism: Auto, Quota: 8 << 20, Snapshots: 2})
	if w, err := m.Get("w"); err != nil || w.QuotaBytes != 0 || w.Mechanism != quotadir.None {
		t.Errorf("Get(w) = %+v, %v; want no quota", w, err)
	}
	if _, err := m.Resize(t.Context(), "w", 8<<20); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Resize without a disk = %v, want FailedPrecondition", err)
	}
	overlaid(t, m, "o", map[string]string{"a": "new"})
	commit(t, m, "o")
	checkNow(t, m, map[string]string{"a": "new"})
	_, err := m.Snapshot(t.Context(), "w", "s")
	must(t, err)
	rw := hold(t, m, "rw", ReadWrite)
	write(t, rw, "a", "newer")
	rw.Release()
	_, err = m.Restore(t.Context(), "w", "s")
	must(t, err)
	checkNow(t, m, map[string]string{"a": "new"})
	oneGeneration(t, m)
	entries, err := os.ReadDir(filepath.Join(dir, id))
	must(t, err)
	for _, f := range entries {
		if _, is := generationOf(f.Name()); is {
			t.Errorf("%s exists, want no generation in this directory", f.Name())
		}
	}
	must(t, m.Delete(t.Context(), "w"))
}
