package safefile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// strict opens the same root with NoFollow.
func strict(t *testing.T, dir string) *Root {
	t.Helper()
	r, err := Open(dir, Options{Prefix: "/workspace", NoFollow: true})
	must(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

func TestNoFollowRefusesLinks(t *testing.T) {
	_, dir := world(t)
	r := strict(t, dir)
	must(t, os.MkdirAll(filepath.Join(dir, "a", "b"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "a", "b", "file"), []byte("content"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "here"), nil, 0o644))
	must(t, os.Symlink("a", filepath.Join(dir, "to-a")))
	must(t, os.Symlink("b/file", filepath.Join(dir, "a", "to-file")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "a", "dangling")))
	must(t, os.Symlink("/etc", filepath.Join(dir, "out")))
	for _, p := range []string{"to-a", "to-a/b", "to-a/b/file", "to-a/new", "a/to-file", "a/dangling", "a/dangling/x", "out", "out/passwd"} {
		each(t, r, p, func(op string, err error) {
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "symbolic link") {
				t.Errorf("%s %q: %v, want a refusal of the link", op, p, err)
			}
		})
		if _, err := r.Edit(t.Context(), p, Edit{Old: "c", New: "d", MaxBytes: 100}); !errdefs.IsPermissionDenied(err) {
			t.Errorf("Edit(%q) = %v, want PermissionDenied", p, err)
		}
		if _, err := r.Walk(t.Context(), p, WalkOptions{}, func(*Entry) error { return nil }); !errdefs.IsPermissionDenied(
			err,
		) {
			t.Errorf("Walk(%q) = %v, want PermissionDenied", p, err)
		}
		if _, err := r.Stat(p); !errdefs.IsPermissionDenied(err) {
			t.Errorf("Stat(%q) = %v, want PermissionDenied", p, err)
		}
	}
	if s, err := get(r, "a/b/file"); err != nil || s != "content" {
		t.Errorf("read of a path without a link = %q, %v; want content", s, err)
	}
}

func TestNoFollowWithoutLinksWorks(t *testing.T) {
	_, dir := world(t)
	r := strict(t, dir)
	must2(r.Mkdir("a/b/c", 0o700))
	must2(r.Mkdir("a/b/c", 0))
	must2(put(t, r, "a/b/c/file", "x", WriteOptions{}))
	must2(put(t, r, "d/e/file", "y", WriteOptions{Parents: true}))
	must2(r.Move("d/e/file", "a/moved"))
	items, _, err := r.List(t.Context(), ".", 10, nil)
	if err != nil || len(items) != 2 {
		t.Errorf("List(.) = %v, %v; want 2", items, err)
	}
	if _, err := r.Mkdir("a/moved", 0); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Mkdir over a file = %v, want AlreadyExists", err)
	}
	if _, err := r.Mkdir("a/moved/x", 0); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Mkdir below a file = %v, want FailedPrecondition", err)
	}
	if _, err := r.Stat("nowhere/x"); !errdefs.IsNotFound(err) {
		t.Errorf("Stat(nowhere/x): %v, want NotFound", err)
	}
	must(t, r.Remove(t.Context(), "a", true))
	if info, err := r.Stat("."); err != nil || info.Path != "." {
		t.Errorf("Stat(.) = %+v, %v; want path .", info, err)
	}
}

func TestSymlinkIsIdempotent(t *testing.T) {
	_, dir := world(t)
	r := strict(t, dir)
	for _, fresh := range []bool{true, false} {
		if made, err := r.Symlink("a/b/name", "/workspace"); made != fresh || err != nil {
			t.Errorf("Symlink = %v, %v; want %v and no error", made, err, fresh)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "a", "b", "name")); to != "/workspace" || err != nil {
		t.Errorf("link target = %q, %v; want /workspace", to, err)
	}
	if _, err := r.Symlink("a/b/name", "/elsewhere"); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Symlink over another link = %v, want AlreadyExists", err)
	}
	if _, err := r.Symlink("a", "/workspace"); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Symlink over a directory = %v, want AlreadyExists", err)
	}
	if _, err := r.Symlink("a/b/name/below", "/workspace"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("Symlink below a link = %v, want PermissionDenied", err)
	}
	for _, p := range []string{"../x", "/x", "", "/workspace"} {
		if _, err := r.Symlink(p, "/workspace"); err == nil {
			t.Errorf("Symlink(%q) succeeded, want an error", p)
		} else if _, ok := errors.AsType[*Error](err); !ok {
			t.Errorf("%q: %v, want *Error", p, err)
		}
	}
}
