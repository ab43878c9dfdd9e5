package safefile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// world returns a root and a directory beside it with a secret.
func world(t *testing.T) (*Root, string) {
	t.Helper()
	top := t.TempDir()
	if err := os.WriteFile(filepath.Join(top, "secret"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "root")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r, err := Open(dir, Options{Prefix: "/workspace"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	return r, dir
}

func put(t *testing.T, r *Root, p, content string, opt WriteOptions) (Info, error) {
	t.Helper()
	w, err := r.Write(p, opt)
	if err != nil {
		return Info{}, err
	}
	defer w.Close()
	if _, err := io.WriteString(w, content); err != nil {
		return Info{}, err
	}
	return w.Commit()
}

func get(r *Root, p string) (string, error) {
	rd, err := r.Read(p, 0, 0)
	if err != nil {
		return "", err
	}
	defer rd.Close()
	b, err := io.ReadAll(rd)
	return string(b), err
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// each runs every operation on p and passes its error to check.
func each(t *testing.T, r *Root, p string, check func(op string, err error)) {
	t.Helper()
	_, err := get(r, p)
	check("read", err)
	_, err = put(t, r, p, "x", WriteOptions{})
	check("write", err)
	_, err = put(t, r, p, "x", WriteOptions{Parents: true})
	check("write with parents", err)
	_, _, err = r.List(t.Context(), p, 10, nil)
	check("list", err)
	_, err = r.Mkdir(p, 0)
	check("mkdir", err)
	_, err = r.Move(p, "elsewhere")
	check("move from", err)
	_, err = r.Move("here", p)
	check("move to", err)
	check("remove", r.Remove(t.Context(), p, true))
}

func TestOperationsStayInRoot(t *testing.T) {
	r, dir := world(t)
	top := filepath.Dir(dir)
	must(t, os.Symlink(top, filepath.Join(dir, "abs")))
	must(t, os.Symlink("..", filepath.Join(dir, "up")))
	must(t, os.Mkdir(filepath.Join(dir, "sub"), 0o755))
	must(t, os.Symlink("../../secret", filepath.Join(dir, "sub", "file")))
	must(t, os.WriteFile(filepath.Join(dir, "here"), nil, 0o644))
	for _, p := range []string{
		"..", "../secret", "/etc/passwd", "/", "/workspace/../secret", "/workspacesecret", "/workspace//../../etc/passwd",
		"sub/../../secret", "abs/secret", "up/secret", "abs/new", "up/new", "up/a/b",
	} {
		each(t, r, p, func(op string, err error) {
			if !errdefs.IsPermissionDenied(err) {
				t.Errorf("%s %q: %v, want permission denied", op, p, err)
			}
		})
	}
	if _, err := get(r, "sub/file"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("read through a link = %v, want PermissionDenied", err)
	}
	if _, err := put(t, r, "sub/file", "x", WriteOptions{}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("write through a link = %v, want PermissionDenied", err)
	}
	must(t, os.Symlink("/new", filepath.Join(dir, "dangling")))
	if _, err := put(t, r, "dangling", "x", WriteOptions{}); !errdefs.IsPermissionDenied(err) {
		t.Errorf("write through a dangling link = %v, want PermissionDenied", err)
	}
	if b, _ := os.ReadFile(filepath.Join(top, "secret")); string(b) != "secret" {
		t.Errorf("the file outside has %q, want secret", b)
	}
	names, err := os.ReadDir(top)
	must(t, err)
	if len(names) != 2 {
		t.Errorf("beside the root: %v, want 2 entries", names)
	}
}

func TestInvalidPathsAreRefused(t *testing.T) {
	r, _ := world(t)
	must2(put(t, r, "here", "", WriteOptions{}))
	for name, p := range map[string]string{
		"NUL": "a\x00b", "UTF-8": "a\xff", "long": strings.Repeat("a/", MaxPath), "part": strings.Repeat("a", 300),
	} {
		each(t, r, p, func(op string, err error) {
			e, ok := errors.AsType[*Error](err)
			if !ok || !errdefs.IsInvalidArgument(err) || e.Field != "path" && e.Field != "to" {
				t.Errorf("%s %s: %v, want invalid argument with a field", op, name, err)
			}
		})
	}
	for _, p := range []string{"", ".", "/workspace", "/workspace/", "sub/.."} {
		if err := r.Remove(t.Context(), p, true); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Remove(%q) = %v, want InvalidArgument", p, err)
		}
		if info, err := r.Stat(p); err != nil || info.Path != "." || info.Type != TypeDir {
			t.Errorf("Stat(%q) = %+v, %v; want the directory \".\"", p, info, err)
		}
	}
}

func must2(_ Info, err error) {
	if err != nil {
		panic(err)
	}
}

func TestOperationsDoNotBlockOnSpecialFiles(t *testing.T) {
	r, dir := world(t)
	must(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666))
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	must(t, err)
	defer unix.Close(l)
	must(t, unix.Bind(l, &unix.SockaddrUnix{Name: filepath.Join(dir, "sock")}))
	must(t, os.Symlink("fifo", filepath.Join(dir, "link")))
	must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	odd := []string{"fifo", "sock", "link", "dir"}
	if unix.Mknod(filepath.Join(dir, "null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) == nil {
		odd = append(odd, "null")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, p := range odd {
			if _, err := get(r, p); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("read of %s = %v, want FailedPrecondition", p, err)
			}
			if _, err := put(t, r, p, "x", WriteOptions{}); !errdefs.IsFailedPrecondition(err) {
				t.Errorf("write of %s = %v, want FailedPrecondition", p, err)
			}
			if _, err := get(r, p+"/x"); p != "dir" && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("read below %s = %v, want FailedPrecondition", p, err)
			}
			if _, _, err := r.List(context.Background(), p, 10, nil); p != "dir" && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("List(%s) = %v, want FailedPrecondition", p, err)
			}
		}
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatal("an operation on a special file blocked, want an error at once")
	}
	items, _, err := r.List(t.Context(), "", 100, nil)
	must(t, err)
	for _, i := range items {
		if strings.HasPrefix(i.Name, ".orchestrator") {
			t.Errorf("temporary file %s exists, want none", i.Name)
		}
	}
}

// A file lease can delay an open by most of a minute.
func TestReadLeasedFileDoesNotBlock(t *testing.T) {
	r, dir := world(t)
	must2(put(t, r, "f", "old", WriteOptions{}))
	f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Logf("there are no leases here: %v", err)
		return
	}
	if _, err := get(r, "f"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("read of a file with a lease = %v, want FailedPrecondition", err)
	}
	_, err = put(t, r, "f", "new", WriteOptions{})
	must(t, err)
	if got, err := get(r, "f"); got != "new" || err != nil {
		t.Errorf("read after a write = %q, %v; want new", got, err)
	}
}

// A writer that is killed must leave nothing.
func TestWriteKilledLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	n, err := unix.Open(dir, unix.O_WRONLY|unix.O_TMPFILE|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Skipf("no files without a name here: %v", err)
	}
	must(t, unix.Close(n))
	r, err := Open(dir, Options{})
	must(t, err)
	defer r.Close()
	must(t, os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o640))
	w, err := r.Write("f", WriteOptions{})
	must(t, err)
	defer w.Close()
	_, err = w.Write([]byte("new"))
	must(t, err)
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("directory = %v, %v; want 1 entry", list, err)
	}
	_, err = w.Commit()
	must(t, err)
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 1 {
		t.Errorf("directory = %v, %v; want 1 entry", list, err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "f")); err != nil || string(text) != "new" {
		t.Errorf("content = %q, %v; want new", text, err)
	}
	if info, err := r.Stat("f"); err != nil || info.Mode != 0o640 {
		t.Errorf("Stat(f) = %+v, %v; want mode 640", info, err)
	}
}

func TestWriteIsAtomic(t *testing.T) {
	r, dir := world(t)
	must2(put(t, r, "f", "old", WriteOptions{}))
	w, err := r.Write("f", WriteOptions{Size: 3})
	must(t, err)
	_, _ = io.WriteString(w, "ne")
	if s, _ := get(r, "f"); s != "old" {
		t.Errorf("content before Commit = %q, want old", s)
	}
	if _, err := w.Commit(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Commit with 2 of 3 bytes = %v, want InvalidArgument", err)
	}
	if _, err := io.WriteString(w, "ww"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Write beyond the size = %v, want InvalidArgument", err)
	}
	must(t, w.Close())
	must(t, w.Close())
	if s, _ := get(r, "f"); s != "old" {
		t.Errorf("content after Close without Commit = %q, want old", s)
	}
	info, err := put(t, r, "f", "new", WriteOptions{Size: 3})
	if err != nil || info.Size != 3 || info.Path != "f" {
		t.Errorf("Write(f) = %+v, %v; want size 3", info, err)
	}
	if s, _ := get(r, "/workspace/f"); s != "new" {
		t.Errorf("content = %q, want new", s)
	}
	names, _ := os.ReadDir(dir)
	if len(names) != 1 {
		t.Errorf("directory = %v, want 1 entry", names)
	}
}

func TestWriteModesAndLinks(t *testing.T) {
	r, dir := world(t)
	info, err := put(t, r, "a/b/f", "x", WriteOptions{Mode: 0o6755, Parents: true})
	if err != nil || info.Mode != 0o755 {
		t.Errorf("%o %v, want 755", info.Mode, err)
	}
	if info, err = put(t, r, "a/b/f", "y", WriteOptions{}); err != nil || info.Mode != 0o755 {
		t.Errorf("replaced: %o %v, want 755", info.Mode, err)
	}
	if _, err = put(t, r, "f", "y", WriteOptions{Mode: 0o100644}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Write of a mode with a type = %v, want InvalidArgument", err)
	}
	if info, err = r.Mkdir("d/e", 0o1700); err != nil || info.Mode != 0o700 || info.Type != TypeDir {
		t.Errorf("Mkdir = %+v, %v; want a directory of mode 700", info, err)
	}
	if info, err = r.Stat("d"); err != nil || info.Mode != 0o755 {
		t.Errorf("Stat of the parent = %+v, %v; want mode 755", info, err)
	}
	if _, err = r.Mkdir("a/b/f", 0); !errdefs.IsAlreadyExists(err) {
		t.Errorf("Mkdir over a file = %v, want AlreadyExists", err)
	}
	must(t, os.Symlink("../a/./b/../b/f", filepath.Join(dir, "d", "l1")))
	must(t, os.Symlink("d/l1", filepath.Join(dir, "l2")))
	must2(put(t, r, "l2", "through", WriteOptions{}))
	if s, _ := get(r, "a/b/f"); s != "through" {
		t.Errorf("content of the link's target = %q, want through", s)
	}
	if info, err = r.Stat("l2"); err != nil || info.Type != TypeSymlink || info.Target != "d/l1" {
		t.Errorf("Stat(l2) = %+v, %v; want a link to d/l1", info, err)
	}
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	if _, err = put(t, r, "loop", "", WriteOptions{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Write of a loop of links = %v, want FailedPrecondition", err)
	}
	if _, err = get(r, "nothing"); !errdefs.IsNotFound(err) {
		t.Errorf("Read(nothing): %v, want NotFound", err)
	}
	if _, err = r.Move("nothing", "x"); !errdefs.IsNotFound(err) {
		t.Errorf("Move(nothing): %v, want NotFound", err)
	}
	if info, err = r.Move("l2", "d/e/l3"); err != nil || info.Type != TypeSymlink || info.Path != "d/e/l3" {
		t.Errorf("Move(l2) = %+v, %v; want the link d/e/l3", info, err)
	}
}

func TestReadOffsetAndLimit(t *testing.T) {
	r, dir := world(t)
	must2(put(t, r, "f", "0123456789", WriteOptions{}))
	for _, c := range []struct {
		offset, limit int64
		want          string
	}{{0, 0, "0123456789"}, {3, 0, "3456789"}, {3, 2, "34"}, {8, 100, "89"}, {10, 0, ""}, {1 << 60, 5, ""}} {
		rd, err := r.Read("f", c.offset, c.limit)
		must(t, err)
		b, err := io.ReadAll(rd)
		if string(b) != c.want || err != nil {
			t.Errorf("Read(%d, %d) = %q, %v; want %q", c.offset, c.limit, b, err, c.want)
		}
		_ = rd.Close()
	}
	if _, err := r.Read("f", -1, 0); !errdefs.IsInvalidArgument(err) {
		t.Errorf("Read with a negative offset: %v, want InvalidArgument", err)
	}
	// Reading a file that grows at the same time must end.
	rd, err := r.Read("f", 0, 0)
	must(t, err)
	defer rd.Close()
	must(t, os.WriteFile(filepath.Join(dir, "f"), make([]byte, 1000), 0o644))
	if b, _ := io.ReadAll(rd); len(b) != 10 {
		t.Errorf("read %d bytes of the file that grew, want 10", len(b))
	}
	if info, err := rd.Stat(); err != nil || info.Size != 1000 {
		t.Errorf("Stat() = %+v, %v; want size 1000", info, err)
	}
}

func TestListLimit(t *testing.T) {
	r, dir := world(t)
	for i := range 1500 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%04d", i)), nil, 0o644))
	}
	must(t, os.WriteFile(filepath.Join(dir, "bad\xff"), nil, 0o644))
	items, more, err := r.List(t.Context(), "/workspace", 2000, nil)
	if err != nil || more || len(items) != 1501 || items[0].Name != "bad\uFFFD" || items[1500].Name != "f1499" {
		t.Fatalf("List = %d items, more %v, %v; want 1501 items from bad\\uFFFD to f1499, no more", len(items), more, err)
	}
	if items, more, err = r.List(t.Context(), "", 100, nil); len(items) != 100 || !more || err != nil {
		t.Errorf("List(100) = %d items, more %v, %v; want 100, true", len(items), more, err)
	}
	if items, more, err = r.List(t.Context(), "", 1501, nil); len(items) != 1501 || more || err != nil {
		t.Errorf("List(1501) = %d items, more %v, %v; want 1501, false", len(items), more, err)
	}
	left := 7
	fits := func(Info) bool { left--; return left >= 0 }
	if items, more, err = r.List(t.Context(), "", 100, fits); len(items) != 7 || !more || err != nil {
		t.Errorf("List with fits = %d items, more %v, %v; want 7, true", len(items), more, err)
	}
}

func TestCreatedFilesHaveOwner(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	dir := t.TempDir()
	r, err := Open(dir, Options{Owner: &Owner{1000, 1001}})
	must(t, err)
	defer r.Close()
	must2(put(t, r, "a/b/f", "", WriteOptions{Parents: true}))
	for _, p := range []string{"a", "a/b", "a/b/f"} {
		if info, err := r.Stat(p); err != nil || info.UID != 1000 || info.GID != 1001 {
			t.Errorf("Stat(%s) = %+v, %v; want owner 1000:1001", p, info, err)
		}
	}
}

func FuzzPath(f *testing.F) {
	for _, s := range []string{"a", "../a", "/workspace/a", "/workspace/../x", "a//b/../../..", "\x00", "\xff", "/", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, p string) {
		r := &Root{opt: Options{Prefix: "/workspace"}}
		name, err := r.cleanPath("path", p)
		if err == nil && !filepath.IsLocal(name) {
			t.Errorf("cleanPath(%q) = %q, want a local path", p, name)
		}
	})
}
