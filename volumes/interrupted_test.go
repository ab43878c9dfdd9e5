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

// lapsing ends the n-th time that it is asked whether it has: work that looks at
// it is cut off at each of its steps in turn.
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

// goneFolders are those below a folder that are being removed.
func goneFolders(t testing.TB, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, gonePrefix+"*"))
	must(t, err)
	return found
}

// Whoever goes away as soon as he has asked for a removal must not keep the
// room: it counts for nobody any more.
func TestWhatIsRemovedIsFreedThoughTheCallerWentAway(t *testing.T) {
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
			t.Fatal("it is said to be removed")
		}
	}
	for left := 0; ; left++ {
		m.tick(t.Context(), time.Now())
		if found := goneFolders(t, snapshots); len(found) > 0 {
			t.Errorf("the snapshot left %v", found)
		}
		err := m.Delete(&lapsing{t.Context(), left}, "w")
		if len(m.List()) == 0 {
			break
		}
		if err == nil {
			t.Fatal("it is said to be deleted")
		}
	}
	m.tick(t.Context(), time.Now())
	if found := goneFolders(t, m.dir); len(found) > 0 {
		t.Errorf("the workspace left %v", found)
	}
}

// A discard is done whole or not at all: half of an overlay could be committed.
func TestDiscardsAreWhole(t *testing.T) {
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
				t.Errorf("discard that lapsed at step %d: %v, and there are %q", left, err, paths(got))
			}
			must(t, m.Discard(t.Context(), id))
		}
		m.tick(t.Context(), time.Now())
		oneGeneration(t, m)
	}
	if left, err := os.ReadDir(filepath.Join(m.byName["w"].root, uppersDir)); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

func paths(d Diff) []string {
	var out []string
	for _, c := range d.Changes {
		out = append(out, strings.Join([]string{string(c.Kind), c.Path}, " "))
	}
	return out
}

// A copy of many octets ends when whoever asked for it goes away, or the service
// stops.
func TestSnapshotsEndWithTheirCaller(t *testing.T) {
	const size = 16 << 20
	for _, mechanism := range []string{"", Auto} {
		m := world(t, Options{Mechanism: mechanism, Quota: 2 * size, Snapshots: 2}, map[string]string{"a": strings.Repeat("x", size)})
		dir := filepath.Join(m.workspacePath(m.byName["w"].meta), snapshotsDir)
		steps := 0
		for ; ; steps++ {
			_, err := m.Snapshot(&lapsing{t.Context(), steps}, "w", "s")
			if err == nil {
				break
			}
			if left, _ := os.ReadDir(dir); len(left) > 0 {
				t.Fatalf("%v, and there is %v", err, left)
			}
			steps += steps / 8 // not all of them, if they are many
		}
		if steps < size>>20 {
			t.Errorf("mechanism %q: nobody asks more than %d times whether to go on", mechanism, steps)
		}
	}
}

// While a disk of the host is nearly full nothing is written to workspaces, and no
// snapshot takes what is left of it.
func TestSnapshotsLeaveRoomOnTheHost(t *testing.T) {
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
		t.Errorf("%v", err)
	}
	if after, err := quotadir.Usage(host); err != nil || after.Free < before.Free-1<<20 {
		t.Errorf("%d octets are free, and %d were: %v", after.Free, before.Free, err)
	}
	if got := now(t, m, "a"); len(got) != size {
		t.Errorf("%d octets", len(got))
	}
}
