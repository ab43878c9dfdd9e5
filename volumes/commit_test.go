package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

func TestCommitSelectedPaths(t *testing.T) {
	m := world(t, Options{}, map[string]string{"gone/x": "x", "gone/y": "y", "f": "f"})
	h := hold(t, m, "o", Overlaid)
	write(t, h, "new/deep/a", "a")
	write(t, h, "new/b", "b")
	write(t, h, "f", "F")
	remove(t, h, "gone")
	h.Release()
	var unknown *PathError
	if _, err := m.Commit(t.Context(), "o", CommitOptions{Paths: []string{"new", "nothing"}}); !errors.As(err, &unknown) ||
		unknown.Path != "nothing" {
		t.Errorf("Commit of a path that is not changed = %v, want a PathError for nothing", err)
	}
	for _, p := range []string{"../x", "/etc", "/workspaces"} {
		if _, err := m.Commit(t.Context(), "o", CommitOptions{Paths: []string{p}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Commit(o, %s): %v, want InvalidArgument", p, err)
		}
	}
	if c := commit(t, m, "o", "/workspace/new/deep", "gone/x"); !slices.Equal(c.Paths,
		[]string{"gone/x", "new", "new/deep", "new/deep/a"}) {
		t.Errorf("Commit(o) = %+v, want gone/x and new/deep", c)
	}
	checkNow(t, m, map[string]string{"new/deep/a": "a", "new/b": "-", "gone/x": "-", "gone/y": "y", "f": "f"})
	d, err := m.Diff(t.Context(), "o", DiffOptions{})
	must(t, err)
	if d.Added != 1 || d.Changed != 1 || d.Removed != 2 {
		t.Errorf("Diff(o) = %+v, want 1 added, 1 changed, 2 removed", d)
	}
	commit(t, m, "o")
	checkNow(t, m, map[string]string{"new/b": "b", "gone/y": "-", "f": "F"})
	oneGeneration(t, m)
}

// listing returns everything in a tree as commands see it.
func listing(tb testing.TB, dir string) string {
	tb.Helper()
	var b strings.Builder
	must(tb, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(&b, "%s %o %d", rel, st.Mode, st.Uid)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %q", text)
		case unix.S_IFLNK:
			target, _ := os.Readlink(p)
			fmt.Fprintf(&b, " -> %s", target)
		}
		b.WriteByte('\n')
		return nil
	}))
	return b.String()
}

// scramble makes random changes in a tree.
func scramble(tb testing.TB, r *rand.Rand, dir string, steps int) {
	tb.Helper()
	names := []string{"a", "b", "c"}
	at := func() string {
		p := dir
		for range 1 + r.IntN(3) {
			p = filepath.Join(p, names[r.IntN(len(names))])
		}
		return p
	}
	for range steps {
		p := at()
		var err error
		switch r.IntN(6) {
		case 0:
			err = os.RemoveAll(p)
		case 1:
			err = os.MkdirAll(p, 0o755)
		case 2:
			err = os.Symlink("x", p)
		case 3:
			err = os.Rename(p, at())
		case 4:
			err = os.Chmod(p, []os.FileMode{0o644, 0o755, 0o700}[r.IntN(3)])
		default:
			err = os.WriteFile(p, []byte(fmt.Sprint(r.IntN(3))), 0o644)
		}
		_ = err // Many steps are impossible.
	}
	must(tb, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, runtime.CommandUID, runtime.CommandGID))
	}))
}

// A commit of everything yields what the lease saw, and so does a sequence of partial commits.
func TestCommitYieldsLeaseView(t *testing.T) {
	m := world(t, Options{}, nil)
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		rw := hold(t, m, fmt.Sprint("rw", seed), ReadWrite)
		scramble(t, r, rw.Binding().Source, 15)
		rw.Release()
		id := fmt.Sprint("o", seed)
		h := hold(t, m, id, Overlaid)
		scramble(t, r, h.Binding().Source, 15)
		want := listing(t, h.Binding().Source)
		h.Release()
		if _, err := m.FindOverlay(id); err == nil {
			d, err := m.Diff(t.Context(), id, DiffOptions{Text: true})
			must(t, err)
			if len(d.Changes) > 1 && seed%2 == 0 {
				_, err := m.Commit(t.Context(), id, CommitOptions{Paths: []string{d.Changes[r.IntN(len(d.Changes))].Path}})
				must(t, err)
			}
			if _, err := m.FindOverlay(id); err == nil {
				commit(t, m, id)
			}
		}
		ro := hold(t, m, "ro", ReadOnly)
		got := listing(t, ro.Binding().Source)
		ro.Release()
		if got != want {
			t.Fatalf("seed %d: committed files are\n%s\nwant what the lease saw:\n%s", seed, got, want)
		}
		oneGeneration(t, m)
	}
}

func TestCommitDropsUnsafeAttributes(t *testing.T) {
	m := world(t, Options{}, map[string]string{"f": "f", "keep": "k"})
	h := hold(t, m, "o", Overlaid)
	dir := h.Binding().Source
	write(t, h, "s", "s")
	must(t, unix.Chmod(filepath.Join(dir, "s"), 0o6755))
	must(t, unix.Setxattr(filepath.Join(dir, "s"), "user.note", []byte("x"), 0))
	capability := []byte{1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	must(t, unix.Setxattr(filepath.Join(dir, "s"), "security.capability", capability, 0))
	must(t, os.MkdirAll(filepath.Join(dir, "g"), 0o755))
	must(t, unix.Chmod(filepath.Join(dir, "g"), 0o3777))
	must(t, unix.Setxattr(filepath.Join(dir, "g"), "user.note", []byte("x"), 0))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644))
	must(t, unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
	remove(t, h, "f")
	must(t, unix.Mkfifo(filepath.Join(dir, "f"), 0o644))
	must(t, os.Symlink("/etc/passwd", filepath.Join(dir, "l")))
	must(t, os.Link(filepath.Join(dir, "s"), filepath.Join(dir, "s2")))
	h.Release()
	c := commit(t, m, "o")
	if !slices.Equal(c.Dropped, []string{"f", "fifo", "null"}) || c.Left != 0 {
		t.Errorf("Commit(o) = %+v, want f, fifo and null dropped and 0 left", c)
	}
	ro := hold(t, m, "ro", ReadOnly)
	defer ro.Release()
	dir = ro.Binding().Source
	if got, want := listing(t, dir),
		". 40755 1000\nf 100644 0 \"f\"\ng 40777 1000\nkeep 100644 0 \"k\"\nl 120777 1000 -> /etc/passwd\ns 100755 1000 "+
			"\"s\"\ns2 100755 1000 \"s\"\n"; got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
	for _, name := range []string{"s", "g"} {
		b := make([]byte, 1024)
		n, err := unix.Listxattr(filepath.Join(dir, name), b)
		const want = "user.note\x00"
		if must(t, err); string(b[:n]) != want {
			t.Errorf("%s has the attributes %q, want %q", name, b[:n], want)
		}
	}
}

// If some names of a hard-linked file are committed, later writes to them must not change the
// overlay.
func TestCommitHardLinksSeparately(t *testing.T) {
	m := world(t, Options{}, nil)
	h := hold(t, m, "o", Overlaid)
	write(t, h, "a", "mine")
	dir := h.Binding().Source
	must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")))
	must(t, os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "c")))
	must(t, unix.Chmod(filepath.Join(dir, "a"), 0o4755))
	h.Release()
	commit(t, m, "o", "a")
	rw := hold(t, m, "rw", ReadWrite)
	if got, want := listing(t, rw.Binding().Source), ". 40755 1000\na 100755 1000 \"mine\"\n"; got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
	write(t, rw, "a", "theirs")
	rw.Release()
	commit(t, m, "o")
	checkNow(t, m, map[string]string{"a": "theirs", "b": "mine", "c": "mine"})
}

func TestWriteInPlaceIsConflict(t *testing.T) {
	m := world(t, Options{}, map[string]string{"a": "aaaa", "b": "bbbb", "gone": "gone", "d/x": "x"})
	overlaid(t, m, "o", map[string]string{"a": "mine", "b": "mine", "gone": "mine", "new": "mine", "d/y": "mine"})
	rw := hold(t, m, "writer", ReadWrite)
	p := filepath.Join(rw.Binding().Source, "a")
	var st unix.Stat_t
	must(t, unix.Lstat(p, &st))
	f, err := os.OpenFile(p, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString("AAAA") // same size as before
	must(t, errors.Join(err, f.Close()))
	must(t, unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{st.Atim, st.Mtim}, 0)) // and the same time
	remove(t, rw, "gone")
	write(t, rw, "new", "theirs")
	remove(t, rw, "d")
	rw.Release()
	_, err = m.Commit(t.Context(), "o", CommitOptions{})
	var told []string
	for _, c := range conflicts(t, err) {
		told = append(told, c.Path+" "+c.By)
	}
	if !slices.Equal(told, []string{"a sandbox writer", "d ", "gone sandbox writer", "new sandbox writer"}) {
		t.Errorf("conflicts = %q, want a, d, gone and new", told)
	}
	commit(t, m, "o", "b")
	checkNow(t, m, map[string]string{"a": "AAAA", "b": "mine", "new": "theirs"})
	d, err := m.Diff(t.Context(), "o", DiffOptions{})
	must(t, err)
	if i := slices.IndexFunc(d.Changes, func(c Change) bool { return c.Path == "a" }); i < 0 ||
		d.Changes[i].Conflict == nil {
		t.Errorf("Diff(o) = %+v, want a conflict of a", d.Changes)
	}
	if _, err = m.Commit(t.Context(), "o", CommitOptions{Force: true}); err != nil {
		t.Errorf("Commit with Force: %v, want success", err)
	}
	checkNow(t, m, map[string]string{"a": "mine", "d/x": "-", "d/y": "mine"})
}

// Writes in place before a kill are detected too.
func TestWriteInPlaceBeforeKillIsConflict(t *testing.T) {
	m := world(t, Options{}, map[string]string{"a": "aaaa", "b": "bbbb"})
	overlaid(t, m, "o", map[string]string{"a": "mine", "b": "mine"})
	rw := hold(t, m, "writer", ReadWrite)
	write(t, rw, "a", "AAAA")
	again := start(t, m.dir, Options{})
	must(t, again.Sweep(t.Context()))
	_, err := again.Commit(t.Context(), "o", CommitOptions{})
	if c := conflicts(t, err); len(c) != 1 || c[0].Path != "a" || c[0].By != "sandbox writer" {
		t.Errorf("conflicts of o = %+v, want a by sandbox writer", c)
	}
}
