package volumes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// inDepth makes a directory with the longest possible path, and opens it. A name in it costs a
// command a few bytes, but a reader thousands.
func inDepth(t *testing.T, dir string) int {
	t.Helper()
	at, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	must(t, err)
	for range 15 {
		name := strings.Repeat("d", 250)
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_PATH|unix.O_DIRECTORY, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	t.Cleanup(func() { unix.Close(at) })
	return at
}

func touchAt(t *testing.T, dir int, name string) {
	t.Helper()
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_WRONLY, 0o644)
	must(t, err)
	must(t, unix.Close(fd))
}

func TestOverlayLongPathsAreBounded(t *testing.T) {
	m := world(t, Options{}, nil)
	h := hold(t, m, "o", Overlaid)
	at := inDepth(t, h.Binding().Source)
	touchAt(t, at, "f")
	for i := range maxDeltaBytes / 3700 { // far fewer than maxDeltas
		must(t, unix.Linkat(at, "f", at, fmt.Sprint(i), 0))
	}
	must(t, unix.Close(at))
	h.Release()
	if _, err := m.Diff(t.Context(), "o", DiffOptions{}); !errdefs.IsFailedPrecondition(err) ||
		!strings.Contains(err.Error(), "discard it") {
		t.Errorf("Diff = %v, want FailedPrecondition with \"discard it\"", err)
	}
	fi, err := os.Stat(m.overlayFile(m.byName["w"].meta, "o", baseExt))
	if must(t, err); fi.Size() > 1<<10 {
		t.Errorf("bases of an unusable overlay have %d bytes, want at most 1024", fi.Size())
	}
	must(t, m.Discard(t.Context(), "o"))
}

// The history of commits with long paths must fit in maxState.
func TestHistoryOfLongPathsIsBounded(t *testing.T) {
	var s state
	long := []byte(strings.Repeat("p", maxTreePath))
	for i := range 2 * maxHistory {
		c := change{Generation: i, By: "overlay x", At: time.Now()}
		for range 2 * maxHistoryPath {
			c.Paths = append(c.Paths, long)
		}
		s.addChange(c)
	}
	dir := t.TempDir()
	must(t, writeJSON(filepath.Join(dir, stateFile), state{Version: stateVersion, History: s.History}))
	_, err := readState(dir)
	must(t, err)
}

// An overlay with the maximum number of committed and touched paths can be loaded after a restart.
func TestReadOverlaysMaxPaths(t *testing.T) {
	many := maxDeltas
	if raceEnabled { // Reading 100 MB of JSON is slow under the race detector. A run without it uses all paths.
		many /= 20
	}
	m := world(t, Options{}, nil)
	overlaid(t, m, "o", map[string]string{"a": "a"})
	must(t, m.withMounted(t.Context(), "w", func(ws *mountedWorkspace) error {
		o, err := ws.findOverlay("o")
		must(t, err)
		p := []byte(strings.Repeat("p", maxDeltaBytes/maxDeltas))
		for range many {
			o.Committed = append(o.Committed, p)
			o.Touched = append(o.Touched, touch{Path: p, By: "sandbox 0191b1a0-0000-7000-8000-000000000000", At: time.Now()})
		}
		return ws.saveOverlay(o)
	}))
	if got, err := m.readOverlays(m.byName["w"].meta); err != nil || len(got["o"].Committed) != many {
		t.Errorf("readOverlays: %d committed paths, %v; want %d", len(got["o"].Committed), err, many)
	}
}

// The cost of a diff is what it reads, whatever the result's size.
func TestDiffLongLinesIsBounded(t *testing.T) {
	m := world(t, Options{}, nil)
	const files = 2 * maxDiffRead / (2 * maxCompared)
	line := func(seed int) string {
		var b strings.Builder
		for i := 0; b.Len() < maxCompared-8; i++ {
			seed = seed*1103515245 + 12345
			b.WriteByte('a' + byte(seed>>16&15))
		}
		return b.String()
	}
	many := func(h *Hold, text string) {
		write(t, h, "0", text)
		for i := 1; i < files; i++ {
			must(t, os.Link(filepath.Join(h.Binding().Source, "0"), filepath.Join(h.Binding().Source, fmt.Sprint(i))))
		}
	}
	h := hold(t, m, "rw", ReadWrite)
	many(h, line(1))
	write(t, h, "z", "a\n")
	h.Release()
	h = hold(t, m, "o", Overlaid)
	for i := range files {
		remove(t, h, fmt.Sprint(i))
	}
	many(h, line(2)+"x")
	write(t, h, "z", "b\n")
	h.Release()
	d, err := m.Diff(t.Context(), "o", DiffOptions{Text: true})
	must(t, err)
	var told int
	for _, c := range d.Changes { // "z" too, because the budget for reads is exhausted
		told += len(c.Text)
		if !c.Cut {
			t.Errorf("%s: Cut = false, want true", c.Path)
		}
	}
	if len(d.Changes) != files+1 || told > maxDiffText {
		t.Errorf("Diff: %d changes with %d bytes of text, want %d with at most %d", len(d.Changes), told, files+1,
			maxDiffText)
	}
}

func TestAcquireFullWorkspaceIsFullError(t *testing.T) {
	m := world(t, Options{Mechanism: Auto, Quota: 8 << 20}, nil)
	h := hold(t, m, "rw", ReadWrite)
	for i := 0; ; i++ {
		if err := os.Mkdir(filepath.Join(h.Binding().Source, fmt.Sprint(i)), 0o755); err != nil {
			break
		}
	}
	h.Release()
	_, err := m.Acquire(t.Context(), "w", "o", Overlaid)
	if _, ok := errors.AsType[*FullError](err); !ok || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Acquire in a full workspace: %v, want *FullError", err)
	}
	if list, err := m.Overlays("w"); err != nil || len(list) != 0 {
		t.Errorf("Overlays(w) = %+v, %v; want none", list, err)
	}
}

// A directory with a long path costs a command a few bytes, but a process that keeps its path
// thousands.
func TestCommitLongDirectoryPathsIsBounded(t *testing.T) {
	m := world(t, Options{}, nil)
	h := hold(t, m, "rw", ReadWrite)
	at := inDepth(t, h.Binding().Source)
	for i := range maxTreeBytes/3700 + 1 {
		must(t, unix.Mkdirat(at, fmt.Sprint(i), 0o755))
	}
	must(t, unix.Close(at))
	h.Release()
	overlaid(t, m, "o", map[string]string{"a": "mine"})
	_, err := m.Commit(t.Context(), "o", CommitOptions{})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "directory paths have more than") {
		t.Errorf("Commit: %v, want ResourceExhausted because of paths", err)
	}
	oneGeneration(t, m)
	if d, err := m.Diff(t.Context(), "o", DiffOptions{}); err != nil || len(d.Changes) != 1 {
		t.Errorf("Diff(o) = %+v, %v; want 1 change", d, err)
	}
}

func TestCommitFullWorkspaceIsFullError(t *testing.T) {
	m := world(t, Options{Mechanism: Auto, Quota: 8 << 20}, nil)
	h := hold(t, m, "o", Overlaid)
	write(t, h, "a", "mine")
	for i := 0; ; i++ {
		if err := os.Mkdir(filepath.Join(h.Binding().Source, fmt.Sprint(i)), 0o755); err != nil {
			break
		}
	}
	full := func(err error) {
		t.Helper()
		if _, ok := errors.AsType[*FullError](err); !ok || !errdefs.IsFailedPrecondition(err) {
			t.Errorf("got %v, want *FullError", err)
		}
	}
	_, err := m.Edit(t.Context(), "w")
	full(err)
	h.Release()
	_, err = m.Commit(t.Context(), "o", CommitOptions{})
	full(err)
	oneGeneration(t, m)
	if d, err := m.Diff(t.Context(), "o", DiffOptions{Paths: []string{"a"}}); err != nil || len(d.Changes) != 1 {
		t.Errorf("Diff(o, a) = %+v, %v; want 1 change", d, err)
	}
	commit(t, m, "o", "a") // this part fits
}

// Removing a tree moves directories. Each move needs space for a name, which a full file system
// does not have.
func TestFullWorkspaceCanBeEmptied(t *testing.T) {
	m := world(t, Options{Mechanism: Auto, Quota: 8 << 20}, nil)
	fill := func(dir string) {
		for i := 0; os.MkdirAll(filepath.Join(dir, "x/0", fmt.Sprint(i), "a/b/c/d"), 0o755) == nil; i++ {
		}
		f, err := os.Create(filepath.Join(dir, "x/f"))
		if err != nil { // No inode is left, and one is needed.
			must(t, os.Remove(filepath.Join(dir, "x/0/0/a/b/c/d")))
			f, err = os.Create(filepath.Join(dir, "x/f"))
		}
		must(t, err)
		for n := 64 << 10; n >= 512; n /= 2 {
			for err = nil; err == nil; {
				_, err = f.Write(make([]byte, n))
				err = errors.Join(err, f.Sync())
			}
		}
		must(t, f.Close())
		must(t, os.Rename(f.Name(), filepath.Join(dir, "f"))) // keep this file
	}
	h := hold(t, m, "rw", ReadWrite)
	fill(h.Binding().Source)
	h.Release()
	f, err := m.Edit(t.Context(), "w")
	must(t, err)
	must(t, f.Remove(t.Context(), "x", true))
	must(t, f.Remove(t.Context(), "f", false))
	must(t, f.Close())
	h = hold(t, m, "o", Overlaid)
	fill(h.Binding().Source)
	h.Release()
	must(t, m.Discard(t.Context(), "o"))
	oneGeneration(t, m) // must succeed at the first attempt
}

// The maximum number of paths of a request, changes of an overlay and recorded changes, without a
// match. Comparing each with each would take half an hour.
func TestSelectDeltasManyPathsIsFast(t *testing.T) {
	v := &overlayView{upperDirs: map[string]*delta{}}
	for i := range maxDeltas {
		v.deltas = append(v.deltas, delta{path: fmt.Sprintf("d/%07d", i), kind: Added})
	}
	var chosen []string
	for i := range 2 * maxDeltas {
		chosen = append(chosen, fmt.Sprintf("/workspace/d/%07d", i/2))
	}
	var s state
	for i := range maxHistory {
		c := change{Generation: i}
		for j := range maxHistoryPath {
			c.Paths = append(c.Paths, fmt.Appendf(nil, "e/%d/%d", i, j))
		}
		s.addChange(c)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		got, err := v.selectDeltas(chosen)
		if err != nil || len(got) != maxDeltas {
			t.Errorf("selectDeltas = %d deltas, %v; want %d", len(got), err, maxDeltas)
		}
		if err := v.keepOnly(append(chosen, "none")); err != nil || len(v.deltas) != maxDeltas {
			t.Errorf("keepOnly keeps %d deltas, %v; want %d", len(v.deltas), err, maxDeltas)
		}
		blame := s.lastChanges()
		for i := range v.deltas {
			if _, found := blame(v.deltas[i].path); found {
				t.Errorf("lastChanges()(%q) found a change, want none", v.deltas[i].path)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("selection and lookups took more than a minute, want less")
	}
}

func TestLastChangesFindsNearestPath(t *testing.T) {
	var s state
	for i, p := range []string{"a", "a/b", "c", "a-b", "a/b/c/d", "c"} {
		s.addChange(change{Generation: i, Paths: [][]byte{[]byte(p)}})
	}
	blame := s.lastChanges()
	for p, want := range map[string]int{"a": 0, "a/x": 0, "a/b": 1, "a/b/c": 1, "a/b/c/d/e": 4, "c": 5, "c/x": 5, "a-b": 3,
		"b": -1, "": -1} {
		by, found := blame(p)
		if !found {
			by.Generation = -1
		}
		if by.Generation != want {
			t.Errorf("last change of %q is of generation %d, want %d", p, by.Generation, want)
		}
	}
}

// A path selects itself and everything below it, but not names with the same prefix.
func TestSelectDeltasIncludesPathsBelow(t *testing.T) {
	all := []string{"a", "a b", "a!", "a-b", "a-b/c", "a/b", "a/b/c", "a/b0", "a0", "a0/b", "a\xff", "b", "\xff",
		"\xff/\xff"}
	slices.Sort(all)
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		v := &overlayView{upperDirs: map[string]*delta{}}
		for _, p := range all {
			if r.IntN(3) > 0 {
				v.deltas = append(v.deltas, delta{path: p, kind: Added})
			}
		}
		var named, want, got []string
		for range 1 + r.IntN(3) {
			named = append(named, []string{all[r.IntN(len(all))], "/workspace/a", ".", "a/"}[r.IntN(4)])
		}
		for _, d := range v.deltas {
			if slices.ContainsFunc(named, func(p string) bool { rel, _ := relativePath(p); return below(d.path, rel) }) {
				want = append(want, d.path)
			}
		}
		must(t, v.keepOnly(named))
		for _, d := range v.deltas {
			got = append(got, d.path)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("keepOnly(%q) keeps %q, want %q", named, got, want)
		}
	}
}

// below reports whether rel is top or a path in it.
func below(rel, top string) bool {
	return top == "" || rel == top || strings.HasPrefix(rel, top) && rel[len(top)] == '/'
}
