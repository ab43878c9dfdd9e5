package volumes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

func changes(t *testing.T, m *Manager, id string, paths ...string) map[string]Change {
	t.Helper()
	d, err := m.Diff(t.Context(), id, DiffOptions{Text: true, Paths: paths})
	must(t, err)
	if len(d.Changes) != d.Added+d.Changed+d.Removed {
		t.Errorf("Diff has %d changes, want the sum of %d, %d and %d", len(d.Changes), d.Added, d.Changed, d.Removed)
	}
	out := map[string]Change{}
	for _, c := range d.Changes {
		out[c.Path] = c
		if !utf8.ValidString(c.Text) {
			t.Errorf("%q has the text %q, want UTF-8", c.Path, c.Text)
		}
	}
	return out
}

func TestDiffReportsEachKindOfChange(t *testing.T) {
	m := world(t, Options{}, map[string]string{
		"text": "one\ntwo\n", "touched": "same", "mode": "same", "gone": "bye\n", "dir/f": "f\n", "was": "file\n",
		"binary": "a\x00b", "latin": "caf\xe9\n",
	})
	h := hold(t, m, "o", Overlaid)
	dir := h.Binding().Source
	write(t, h, "text", "one\n2\n")
	write(t, h, "touched", "same")
	must(t, os.Chmod(filepath.Join(dir, "mode"), 0o755))
	remove(t, h, "gone")
	remove(t, h, "dir")
	remove(t, h, "was")
	write(t, h, "was/now", "folder\n")
	write(t, h, "binary", "a\x00c")
	write(t, h, "latin", "th\xe9\n")
	write(t, h, "new\nline \xff", "odd\n")
	write(t, h, "large", strings.Repeat("x", maxCompared+1))
	write(t, h, "long", strings.Repeat("line\n", 30_000))
	must(t, os.Symlink("/etc/shadow", filepath.Join(dir, "link")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for _, live := range []bool{true, false} {
		if !live {
			h.Release()
		}
		got := changes(t, m, "o")
		for p, want := range map[string]Change{
			"text": {Kind: Changed, Type: "file", TypeBefore: "file",
				Text: "--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"},
			"mode":  {Kind: Changed, Type: "file", TypeBefore: "file"},
			"gone":  {Kind: Removed, TypeBefore: "file", Text: "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-bye\n"},
			"dir":   {Kind: Removed, TypeBefore: "dir"},
			"dir/f": {Kind: Removed, TypeBefore: "file", Text: "--- a/dir/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-f\n"},
			"was": {Kind: Changed, Type: "dir", TypeBefore: "file",
				Text: "--- a/was\n+++ b/was\n@@ -1 +0,0 @@\n-file\n"},
			"was/now": {Kind: Added, Type: "file", Text: "--- /dev/null\n+++ b/was/now\n@@ -0,0 +1 @@\n+folder\n"},
			"binary":  {Kind: Changed, Type: "file", TypeBefore: "file", Binary: true},
			"latin": {Kind: Changed, Type: "file", TypeBefore: "file",
				Text: "--- a/latin\n+++ b/latin\n@@ -1 +1 @@\n-caf\uFFFD\n+th\uFFFD\n"},
			"new\nline \xff": {Kind: Added, Type: "file",
				Text: "--- /dev/null\n+++ \"b/new\\nline \\xff\"\n@@ -0,0 +1 @@\n+odd\n"},
			"large": {Kind: Added, Type: "file", Cut: true},
			"link":  {Kind: Added, Type: "symlink", Text: "--- /dev/null\n+++ b/link\n@@ -0,0 +1 @@\n+/etc/shadow\n"},
			"fifo":  {Kind: Added, Type: "other", Dropped: true},
		} {
			c, ok := got[p]
			if !ok || c.Kind != want.Kind || c.Type != want.Type || c.TypeBefore != want.TypeBefore || c.Text != want.Text ||
				c.Binary != want.Binary || c.Cut != want.Cut || c.Dropped != want.Dropped || c.Conflict != nil {
				t.Errorf("live %v: %q = %+v, want %+v", live, p, c, want)
			}
			delete(got, p)
		}
		if c := got["long"]; !c.Cut || len(c.Text) > maxFileText || !strings.HasSuffix(c.Text, "+line\n") {
			t.Errorf("Diff: long text has %d bytes, cut %v; want at most %d, true", len(c.Text), c.Cut, maxFileText)
		}
		delete(got, "long")
		if len(got) != 0 {
			t.Errorf("live %v: other changes %+v, want none", live, got)
		}
		if got := changes(t, m, "o", "was", "/workspace/dir"); len(got) != 4 {
			t.Errorf("changes of two paths = %+v, want 4", got)
		}
	}
}

// A tree deeper than any path can be diffed and discarded.
func TestCommitDeepTreeFails(t *testing.T) {
	m := world(t, Options{}, nil)
	h := hold(t, m, "o", Overlaid)
	at, err := unix.Open(h.Binding().Source, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
	must(t, err)
	name := strings.Repeat("d", 250)
	for range 40 {
		must(t, unix.Mkdirat(at, name, 0o755))
		next, err := unix.Openat(at, name, unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		must(t, err)
		must(t, unix.Close(at))
		at = next
	}
	must(t, unix.Close(at))
	h.Release()
	if _, err := m.Commit(t.Context(), "o", CommitOptions{}); err == nil {
		t.Error("Commit of a deep tree succeeded, want error")
	}
	must(t, m.Discard(t.Context(), "o"))
	oneGeneration(t, m)
}
