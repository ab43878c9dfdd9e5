package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/quotadir"
)

// lapsing ends at the n-th check, which interrupts work at each of its steps in turn.
type lapsing struct {
	context.Context
	left int
}

func (c *lapsing) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// goneFolders returns the directories below dir that are being removed.
func goneFolders(tb testing.TB, dir string) []string {
	tb.Helper()
	found, err := filepath.Glob(filepath.Join(dir, gonePrefix+"*"))
	must(tb, err)
	return found
}

// A caller that gives up right after it asked for a removal must not keep the space in use.
func TestRemovalContinuesAfterCancel(t *testing.T) {
	m := world(t, Options{Snapshots: 2}, map[string]string{"a": "a", "d/b": "b"})
	_, err := m.Snapshot(t.Context(), "w", "s")
	must(t, err)
	snapshots := filepath.Join(m.workspacePath(m.byName["w"].meta), snapshotsDir)
	for left := 0; ; left++ {
		err := m.RemoveSnapshot(&lapsing{t.Context(), left}, "w", "s")
		if list, _ := m.Snapshots("w"); len(list) == 0 {
			break
		}
		if err == nil {
			t.Fatal("cancelled RemoveSnapshot succeeded, want error")
		}
	}
	for left := 0; ; left++ {
		m.tick(t.Context(), time.Now())
		if found := goneFolders(t, snapshots); len(found) > 0 {
			t.Errorf("after RemoveSnapshot: %v, want nothing", found)
		}
		err := m.Delete(&lapsing{t.Context(), left}, "w")
		if len(m.List()) == 0 {
			break
		}
		if err == nil {
			t.Fatal("cancelled Delete succeeded, want error")
		}
	}
	m.tick(t.Context(), time.Now())
	if found := goneFolders(t, m.dir); len(found) > 0 {
		t.Errorf("after Delete: %v, want nothing", found)
	}
}

// A discard is atomic: a part of an overlay could still be committed.
func TestDiscardCancelledIsAtomic(t *testing.T) {
	m := world(t, Options{}, map[string]string{"a": "base"})
	for left := range 40 {
		id := fmt.Sprint("o", left)
		h := hold(t, m, id, Overlaid)
		for i := range 4 {
			for j := range 3 {
				write(t, h, fmt.Sprintf("d%d/e/%d", i, j), "mine")
			}
		}
		remove(t, h, "a")
		h.Release()
		want, err := m.Diff(t.Context(), id, DiffOptions{})
		must(t, err)
		err = m.Discard(&lapsing{t.Context(), left}, id)
		if _, none := m.FindOverlay(id); none == nil {
			got, derr := m.Diff(t.Context(), id, DiffOptions{})
			if must(t, derr); err == nil || !slices.Equal(paths(got), paths(want)) {
				t.Errorf("Discard cancelled at step %d = %v, keeps %q; want an error and %q", left, err, paths(got), paths(want))
			}
			must(t, m.Discard(t.Context(), id))
		}
		m.tick(t.Context(), time.Now())
		oneGeneration(t, m)
	}
	if left, err := os.ReadDir(filepath.Join(m.byName["w"].root, uppersDir)); err != nil || len(left) > 0 {
		t.Errorf("uppers = %v, %v; want none", left, err)
	}
}

func paths(d Diff) []string {
	out := make([]string, 0, len(d.Changes))
	for _, c := range d.Changes {
		out = append(out, strings.Join([]string{string(c.Kind), c.Path}, " "))
	}
	return out
}

// Copying a large file ends when its caller gives up or the service stops.
func TestSnapshotCancelledLeavesNothing(t *testing.T) {
	const size = 16 << 20
	for _, mechanism := range []string{"", Auto} {
		m := world(t, Options{Mechanism: mechanism, Quota: 2 * size, Snapshots: 2},
			map[string]string{"a": strings.Repeat("x", size)})
		dir := filepath.Join(m.workspacePath(m.byName["w"].meta), snapshotsDir)
		steps := 0
		for ; ; steps++ {
			_, err := m.Snapshot(&lapsing{t.Context(), steps}, "w", "s")
			if err == nil {
				break
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Fatalf("cancelled Snapshot = %v, leaves %v; want nothing", err, left)
			}
			steps += steps / 8 // only a sample if there are many steps
		}
		if steps < size>>20 {
			t.Errorf("mechanism %q: %d checks of the context, want at least %d", mechanism, steps, size>>20)
		}
	}
}

// While a host's disk is nearly full, workspaces are not written, and a snapshot must not use the
// rest.
func TestSnapshotKeepsHostReserve(t *testing.T) {
	needRoot(t)
	const room, size = 64 << 20, 31 << 20
	host := t.TempDir()
	must(t, unix.Mount("tmpfs", host, "tmpfs", 0, fmt.Sprint("size=", room)))
	t.Cleanup(func() { must(t, unix.Unmount(host, 0)) })
	m := start(t, filepath.Join(host, "workspaces"), Options{Snapshots: 4})
	_, err := m.Create(t.Context(), "w", CreateOptions{})
	must(t, err)
	h := hold(t, m, "rw", ReadWrite)
	write(t, h, "a", strings.Repeat("x", size))
	h.Release()
	before, err := quotadir.Usage(host)
	must(t, err)
	_, err = m.Snapshot(t.Context(), "w", "s")
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Snapshot on a full host: %v, want ENOSPC", err)
	}
	if after, err := quotadir.Usage(host); err != nil || after.Free < before.Free-1<<20 {
		t.Errorf("host has %d bytes free, %v; want about %d", after.Free, err, before.Free)
	}
	if got := now(t, m, "a"); len(got) != size {
		t.Errorf("file has %d bytes, want %d", len(got), size)
	}
}
