package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/userns"
)

// start opens a Manager of dir. Its mounts are removed with the test.
func start(tb testing.TB, dir string, opts Options) *Manager {
	tb.Helper()
	m, err := Open(dir, opts)
	must(tb, err)
	tb.Cleanup(func() { must(tb, m.Down(context.Background())) })
	return m
}

// world creates a workspace "w" with files.
func world(tb testing.TB, opts Options, files map[string]string) *Manager {
	tb.Helper()
	needRoot(tb)
	m := start(tb, filepath.Join(tb.TempDir(), "workspaces"), opts)
	_, err := m.Create(tb.Context(), "w", CreateOptions{})
	must(tb, err)
	h := hold(tb, m, "first", ReadWrite)
	for p, text := range files {
		write(tb, h, p, text)
	}
	h.Release()
	return m
}

func hold(tb testing.TB, m *Manager, lease string, mode Mode) *Hold {
	tb.Helper()
	h, err := m.Acquire(tb.Context(), "w", lease, mode)
	must(tb, err)
	return h
}

func write(tb testing.TB, h *Hold, p, text string) {
	tb.Helper()
	p = filepath.Join(h.Binding().Source, p)
	must(tb, os.MkdirAll(filepath.Dir(p), 0o755))
	must(tb, os.WriteFile(p, []byte(text), 0o644))
}

func read(tb testing.TB, h *Hold, p string) string {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join(h.Binding().Source, p))
	if errors.Is(err, fs.ErrNotExist) {
		return "-"
	}
	must(tb, err)
	return string(b)
}

// now returns what a new lease reads at a path.
func now(tb testing.TB, m *Manager, p string) string {
	tb.Helper()
	h := hold(tb, m, "now", ReadOnly)
	defer h.Release()
	return read(tb, h, p)
}

// checkNow compares what a new lease reads at paths with want, where "-" is a missing file.
func checkNow(tb testing.TB, m *Manager, want map[string]string) {
	tb.Helper()
	got := map[string]string{}
	for p := range want {
		got[p] = now(tb, m, p)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("files of a new lease (-want +got):\n%s", diff)
	}
}

// checkRead compares what a lease reads at a path with want, where "-" is a missing file.
func checkRead(tb testing.TB, h *Hold, p, want string) {
	tb.Helper()
	if got := read(tb, h, p); got != want {
		tb.Errorf("the lease reads %q at %s, want %q", got, p, want)
	}
}

func remove(tb testing.TB, h *Hold, p string) {
	tb.Helper()
	must(tb, os.RemoveAll(filepath.Join(h.Binding().Source, p)))
}

// overlaid creates an overlay of an ended lease.
func overlaid(tb testing.TB, m *Manager, lease string, files map[string]string) {
	tb.Helper()
	h := hold(tb, m, lease, Overlaid)
	for p, text := range files {
		write(tb, h, p, text)
	}
	h.Release()
}

func commit(tb testing.TB, m *Manager, id string, paths ...string) Committed {
	tb.Helper()
	c, err := m.Commit(tb.Context(), id, CommitOptions{Paths: paths})
	must(tb, err)
	return c
}

func conflicts(tb testing.TB, err error) []Conflict {
	tb.Helper()
	var c *ConflictError
	if !errors.As(err, &c) || !errdefs.IsConflict(err) {
		tb.Fatalf("Commit = %v, want a ConflictError with the class Conflict", err)
	}
	return c.Conflicts
}

func TestOverlaysAreIsolated(t *testing.T) {
	m := world(t, Options{}, map[string]string{"a": "base", "b": "base", "d/c": "base"})
	one, two, three := hold(t, m, "one", Overlaid), hold(t, m, "two", Overlaid), hold(t, m, "three", Overlaid)
	reader := hold(t, m, "reader", ReadOnly)
	write(t, one, "a", "one")
	write(t, two, "b", "two")
	write(t, three, "a", "three")
	write(t, three, "n", "three")
	checkRead(t, one, "a", "one")
	checkRead(t, two, "a", "base")
	checkRead(t, three, "a", "three")
	checkRead(t, reader, "a", "base")
	if _, err := m.Commit(t.Context(), "one", CommitOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Commit of a live overlay = %v, want FailedPrecondition", err)
	}
	if err := m.Discard(t.Context(), "one"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Discard of a live overlay = %v, want FailedPrecondition", err)
	}
	one.Release()
	if c := commit(t, m, "one"); !slices.Equal(c.Paths, []string{"a"}) || c.Left != 0 {
		t.Errorf("Commit(one) = %+v, want [a] and 0 left", c)
	}
	checkRead(t, two, "a", "base")
	checkRead(t, three, "a", "three")
	checkRead(t, reader, "a", "base")
	checkNow(t, m, map[string]string{"a": "one"})
	two.Release()
	commit(t, m, "two")
	three.Release()
	_, err := m.Commit(t.Context(), "three", CommitOptions{})
	if c := conflicts(t, err); len(c) != 1 || c[0].Path != "a" || c[0].By != "overlay one" || c[0].At.IsZero() {
		t.Errorf("conflicts of three = %+v, want a by overlay one", c)
	}
	checkNow(t, m, map[string]string{"a": "one", "b": "two", "n": "-"})
	if c := commit(t, m, "three", "n"); c.Left != 1 {
		t.Errorf("Commit(three, n) = %+v, want 1 left", c)
	}
	_, err = m.Commit(t.Context(), "three", CommitOptions{Force: true})
	must(t, err)
	checkNow(t, m, map[string]string{"a": "three"})
	reader.Release()
	if list, _ := m.Overlays("w"); len(list) != 0 {
		t.Errorf("Overlays(w) = %+v, want none", list)
	}
	oneGeneration(t, m)
}

// oneGeneration fails the test if earlier generations or overlays still use space.
func oneGeneration(tb testing.TB, m *Manager) {
	tb.Helper()
	e := m.byName["w"]
	entries, err := os.ReadDir(e.root)
	must(tb, err)
	var names []string
	for _, f := range entries {
		if _, is := generationOf(f.Name()); is || strings.HasPrefix(f.Name(), ".") {
			names = append(names, f.Name())
		}
	}
	if !slices.Equal(names, []string{generationName(e.state.Current)}) {
		tb.Errorf("generations = %v, want only %d", names, e.state.Current)
	}
	if uppers, err := os.ReadDir(filepath.Join(e.root, uppersDir)); err == nil && len(uppers) != len(e.overlays) {
		tb.Errorf("%d uppers, want one for each of %d overlays", len(uppers), len(e.overlays))
	}
}

func TestEditBesideOverlays(t *testing.T) {
	m := world(t, Options{}, map[string]string{"a": "base"})
	o := hold(t, m, "o", Overlaid)
	write(t, o, "a", "mine")
	f, err := m.Edit(t.Context(), "w")
	must(t, err)
	for p, text := range map[string]string{"a": "host", "h": "host"} {
		w, err := f.Write(p, safefile.WriteOptions{})
		must(t, err)
		_, err = w.Write([]byte(text))
		must(t, err)
		_, err = w.Commit()
		must(t, errors.Join(err, w.Close()))
	}
	if _, err := m.Acquire(t.Context(), "w", "second", Overlaid); !errdefs.IsUnavailable(err) {
		t.Errorf("Acquire while the host writes = %v, want Unavailable", err)
	}
	must(t, f.Close())
	checkRead(t, o, "a", "mine")
	checkRead(t, o, "h", "-")
	checkNow(t, m, map[string]string{"a": "host", "h": "host"})
	o.Release()
	_, err = m.Commit(t.Context(), "o", CommitOptions{})
	if c := conflicts(t, err); len(c) != 1 || c[0].Path != "a" {
		t.Errorf("conflicts of o = %+v, want a", c)
	}
	oneGeneration(t, m)
}

func TestReaderKeepsGeneration(t *testing.T) {
	m := world(t, Options{}, map[string]string{"a": "base"})
	reader := hold(t, m, "reader", ReadOnly)
	overlaid(t, m, "o", map[string]string{"a": "mine"})
	commit(t, m, "o")
	checkRead(t, reader, "a", "base")
	checkNow(t, m, map[string]string{"a": "mine"})
	again := start(t, m.dir, Options{}) // as after a kill
	reader = hold(t, again, "reader", ReadOnly)
	must(t, again.Sweep(t.Context()))
	checkRead(t, reader, "a", "base")
	checkNow(t, again, map[string]string{"a": "mine"})
	reader.Release()
	oneGeneration(t, again)
}

func TestSweepAfterRestart(t *testing.T) {
	m := world(t, Options{}, map[string]string{"a": "base"})
	live, over, empty := hold(t, m, "live", Overlaid), hold(t, m, "over", Overlaid), hold(t, m, "empty", Overlaid)
	write(t, live, "a", "live")
	write(t, over, "b", "over")
	_ = empty
	again := start(t, m.dir, Options{})
	if _, err := again.Acquire(t.Context(), "w", "writer", ReadWrite); !errdefs.IsUnavailable(err) {
		t.Errorf("Acquire below an orphaned overlay: %v, want Unavailable", err)
	}
	if _, err := again.Edit(t.Context(), "w"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Edit below an orphaned overlay = %v, want FailedPrecondition", err)
	}
	live = hold(t, again, "live", Overlaid)
	must(t, again.Sweep(t.Context()))
	checkRead(t, live, "a", "live")
	write(t, live, "c", "live")
	if list, _ := again.Overlays("w"); len(list) != 2 || !list[0].Live || list[1].Live || list[1].ID != "over" {
		t.Errorf("Overlays(w) = %+v, want one live and over ended", list)
	}
	commit(t, again, "over")
	live.Release()
	commit(t, again, "live")
	checkNow(t, again, map[string]string{"a": "live", "b": "over", "c": "live"})
	oneGeneration(t, again)
}

func TestOverlaysMaxIsEnforced(t *testing.T) {
	m := world(t, Options{Overlays: Overlays{Keep: time.Hour, Max: 2}}, map[string]string{"a": "base"})
	overlaid(t, m, "one", map[string]string{"a": "1"})
	two := hold(t, m, "two", Overlaid)
	if _, err := m.Acquire(t.Context(), "w", "three", Overlaid); !errdefs.IsResourceExhausted(err) {
		t.Errorf("Acquire beyond Max = %v, want ResourceExhausted", err)
	}
	write(t, two, "a", "2")
	m.tick(t.Context(), time.Now().Add(2*time.Hour))
	if list, _ := m.Overlays("w"); len(list) != 1 || list[0].ID != "two" || !list[0].Live {
		t.Errorf("Overlays(w) after Keep = %+v, want only two, live", list)
	}
	two.Release()
	m.tick(t.Context(), time.Now().Add(2*time.Hour))
	if list, _ := m.Overlays("w"); len(list) != 0 {
		t.Errorf("Overlays(w) after Keep = %+v, want none", list)
	}
	if _, err := m.Diff(t.Context(), "two", DiffOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("Diff of an expired overlay: %v, want NotFound", err)
	}
}

func TestAwaitIsFIFO(t *testing.T) {
	m := world(t, Options{}, nil)
	h := hold(t, m, "h", ReadWrite)
	var busy *BusyError
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := m.Await(short, "w", ReadWrite); !errors.As(err, &busy) || busy.Lease != "h" {
		t.Errorf("Await while held: %v, want BusyError of lease h", err)
	}
	got := make(chan int, 3)
	for i := range 3 {
		go func() {
			done, err := m.Await(t.Context(), "w", ReadWrite)
			if err != nil {
				t.Errorf("Await: %v", err)
				got <- -1
				return
			}
			h, err := m.Acquire(t.Context(), "w", fmt.Sprint("lease", i), ReadWrite)
			if err != nil {
				t.Errorf("Acquire after Await: %v", err)
			}
			got <- i
			done()
			h.Release()
		}()
		for waiting := 0; waiting <= i; { // so that their order is known
			m.mu.Lock()
			waiting = len(m.byName["w"].waiters)
			m.mu.Unlock()
			time.Sleep(time.Millisecond)
		}
	}
	h.Release()
	for i := range 3 {
		if n := <-got; n != i {
			t.Errorf("turn %d went to waiter %d, want %d", i, n, i)
		}
	}
	if _, err := m.Await(t.Context(), "none", ReadWrite); !errdefs.IsNotFound(err) {
		t.Errorf("Await(none): %v, want NotFound", err)
	}
}

// TestOverlayForUserNamespaceKeepsOwners checks that the users of a namespace see the owners
// that are on disk, and that what they own is written with these.
func TestOverlayForUserNamespaceKeepsOwners(t *testing.T) {
	m := world(t, Options{}, map[string]string{"file": "x"})
	user, err := userns.New(userns.FirstID)
	must(t, err)
	defer user.Close()
	h, err := m.AcquireFor(t.Context(), "w", "p", Overlaid, user.File())
	must(t, err)
	defer h.Release()
	b := h.Binding()
	if !b.OwnersMapped {
		t.Error("Binding says that owners are not mapped, want mapped")
	}
	var st unix.Stat_t
	must(t, unix.Lstat(b.Source, &st))
	if want := uint32(userns.FirstID + 1000); st.Uid != want || st.Gid != want {
		t.Errorf("owner of the overlay = %d:%d, want %d", st.Uid, st.Gid, want)
	}
	file := filepath.Join(b.Source, "file")
	must(t, os.Lchown(file, userns.FirstID+1001, userns.FirstID+1002))
	h.Release()
	d, err := m.Diff(t.Context(), "p", DiffOptions{})
	must(t, err)
	if len(d.Changes) != 1 || d.Changes[0].Path != "file" {
		t.Errorf("changes = %+v, want that of file", d.Changes)
	}
}
