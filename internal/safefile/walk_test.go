package safefile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestWalkVisitsEverythingOnce(t *testing.T) {
	r, dir := world(t)
	want := walkWorld(t, dir)
	seen := map[string]string{}
	whole, err := r.Walk(t.Context(), ".", WalkOptions{}, func(e *Entry) error {
		if _, twice := seen[e.Rel]; twice {
			t.Errorf("Walk visited %q twice, want once", e.Rel)
		}
		seen[e.Rel] = e.Type
		if rd, err := e.Open(); (err == nil) != (e.Type == TypeFile) {
			t.Errorf("Open of %q, type %s = %v; want success only for a file", e.Rel, e.Type, err)
		} else if err == nil {
			_ = rd.Close()
		}
		return nil
	})
	if err != nil || !whole || len(seen) != len(want) {
		t.Errorf("Walk = %d entries, complete %v, %v; want %d, true", len(seen), whole, err, len(want))
	}
	for name, kind := range want {
		if seen[name] != kind {
			t.Errorf("%q is %q, want %q", name, seen[name], kind)
		}
	}
}

// walkWorld makes more entries in a directory than one sorted batch has, a deep tree, links and
// special files. It returns the type of each.
func walkWorld(t *testing.T, dir string) map[string]string {
	t.Helper()
	want := map[string]string{}
	must(t, os.Mkdir(filepath.Join(dir, "many"), 0o755))
	for i := range 5000 {
		name := fmt.Sprintf("many/%05d", i)
		want[name] = TypeFile
		must(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	want["many"], want["deep"] = TypeDir, TypeDir
	deep := "deep" + strings.Repeat("/d", 300)
	must(t, os.MkdirAll(filepath.Join(dir, deep), 0o755))
	for p := deep; p != "deep"; p = filepath.Dir(p) {
		want[p] = TypeDir
	}
	must(t, os.Symlink("..", filepath.Join(dir, "deep", "loop")))
	must(t, os.Symlink("/", filepath.Join(dir, "out")))
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	must(t, os.WriteFile(filepath.Join(dir, "odd\xff\n"), nil, 0o644))
	want["deep/loop"], want["out"], want["fifo"], want["odd\xff\n"] = TypeSymlink, TypeSymlink, TypeOther, TypeFile
	return want
}

func TestWalkMaxAndEnter(t *testing.T) {
	r, dir := world(t)
	walkWorld(t, dir)
	n := 0
	whole, err := r.Walk(t.Context(), "many", WalkOptions{Max: 10}, func(*Entry) error { n++; return nil })
	if whole || err != nil || n != 10 {
		t.Errorf("Walk with Max 10 = %d entries, complete %v, %v; want 10, false", n, whole, err)
	}
	n = 0
	whole, err = r.Walk(
		t.Context(),
		".",
		WalkOptions{Enter: func(rel string) bool { return rel != "many" }},
		func(e *Entry) error {
			if strings.HasPrefix(e.Rel, "many/") {
				n++
			}
			return nil
		},
	)
	if !whole || err != nil || n != 0 {
		t.Errorf("Walk without Enter: %d entries, complete %v, %v; want 0, true", n, whole, err)
	}
}

func TestWalkFromFile(t *testing.T) {
	r, dir := world(t)
	must2(put(t, r, "a/f", "text", WriteOptions{Parents: true}))
	must(t, os.Symlink("f", filepath.Join(dir, "a", "link")))
	must(t, os.Symlink("../../secret", filepath.Join(dir, "a", "out")))
	for p, rel := range map[string]string{"a/f": "f", "a/link": "link"} {
		var text string
		whole, err := r.Walk(t.Context(), p, WalkOptions{}, func(e *Entry) error {
			if e.Rel != rel || e.Type != TypeFile {
				t.Errorf("visited %+v, want the file %s", e, rel)
			}
			rd, err := e.Open()
			if err != nil {
				return err
			}
			b, err := io.ReadAll(rd)
			text = string(b)
			return err
		})
		if !whole || err != nil || text != "text" {
			t.Errorf("Walk(%s): content %q, complete %v, %v; want text", p, text, whole, err)
		}
	}
	for p, want := range map[string]error{
		"a/out": errdefs.ErrPermissionDenied, "nothing": errdefs.ErrNotFound, "a/f/x": errdefs.ErrFailedPrecondition,
	} {
		if _, err := r.Walk(t.Context(), p, WalkOptions{}, func(*Entry) error { return nil }); !errors.Is(err, want) {
			t.Errorf("Walk(%s) = %v, want the class %v", p, err, want)
		}
	}
}
