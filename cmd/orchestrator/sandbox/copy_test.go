package sandbox

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
)

func TestParseLocation(t *testing.T) {
	for text, want := range map[string]location{
		"-":                   {std: true, path: "-"},
		"notes.txt":           {path: "notes.txt"},
		"./a:b":               {path: "./a:b"},
		"/tmp/a:b":            {path: "/tmp/a:b"},
		"dir.d/a:b":           {path: "dir.d/a:b"},
		"0123:x/y":            {sandbox: "0123", path: "x/y"},
		"0123:/tmp/x":         {sandbox: "0123", path: "/tmp/x"},
		"0123:a:b":            {sandbox: "0123", path: "a:b"},
		"0123:":               {sandbox: "0123"},
		"workspace:notes:a/b": {workspace: "notes", path: "a/b"},
		"workspace:a.b:c:d":   {workspace: "a.b", path: "c:d"},
		"workspace:notes":     {workspace: "notes"},
		":x":                  {path: ":x"},
	} {
		want.text = text
		if got := parseLocation(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

// Only on Windows does parseLocation pass a volume.
func TestLocateWindowsPath(t *testing.T) {
	for text, volume := range map[string]string{
		`C:\out`: "C:", `C:out`: "C:", `C:a:b`: "C:", `C:`: "C:", `\\host\share\x`: `\\host\share`,
	} {
		want := location{text: text, path: filepath.ToSlash(text)}
		if got := locate(text, volume); got != want {
			t.Errorf("locate(%q, %q) = %+v, want %+v", text, volume, got, want)
		}
	}
}

func TestLocationBase(t *testing.T) {
	for text, want := range map[string]string{
		"a/b": "b", "a/b/": "b", "a/..": "", ".": "", "..": "", "/": "", `a\b`: `a\b`,
		"id:a/b": "b", "id:/": "", "id:.": "", "id:a/..": "", "workspace:w:a/b/": "b", `id:a\b`: `a\b`,
	} {
		if got := parseLocation(text).base(); got != want {
			t.Errorf("base of %q = %q, want %q", text, got, want)
		}
	}
}

func TestNewPalette(t *testing.T) {
	a := &cli.App{Stdout: &strings.Builder{}, Lookup: func(string) (string, bool) { return "", false }}
	e := v1.ServiceEvent{At: time.Now(), Type: "sandbox.failed", Sandbox: "x", Reason: "two words\n\x1b[31m"}
	if line := eventLine(e, a.NewPalette()); strings.Contains(line, "\x1b") || strings.Contains(line, "\n") ||
		!strings.Contains(line, `sandbox.failed sandbox=x reason="two words`) {
		t.Errorf("eventLine = %q, want the event and its reason on one line without escapes", line)
	}
	want := "\x1b[31msandbox.failed\x1b[0m"
	if line := eventLine(e, cli.Palette{On: true}); !strings.Contains(line, want) {
		t.Errorf("eventLine in colour = %q, want it to contain %q", line, want)
	}
	for _, name := range []string{"NO_COLOR", "TERM"} {
		a.Lookup = func(v string) (string, bool) { return "dumb", v == name }
		if a.NewPalette().On {
			t.Errorf("with %s: On = true, want false", name)
		}
	}
}

// copied copies files within this host.
func copied(t *testing.T, from files, src, dst string) (*copying, error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	c := &copying{
		app:   &cli.App{},
		from:  from,
		to:    hostFiles{},
		group: group,
		ctx:   ctx,
		slots: make(chan struct{}, copyParallel),
	}
	err := c.start(parseLocation(src), parseLocation(dst))
	return c, errors.Join(err, group.Wait())
}

func TestCopyIntoLinkedDirectory(t *testing.T) {
	dir := t.TempDir()
	src, folder, link := filepath.Join(dir, "src"), filepath.Join(dir, "folder"), filepath.Join(dir, "link")
	err := errors.Join(os.WriteFile(src, []byte("x"), 0o600), os.Mkdir(folder, 0o700), os.Symlink("folder", link))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := copied(t, hostFiles{}, src, link); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(folder, "src")); err != nil || string(text) != "x" {
		t.Errorf("copy = %q, %v; want x", text, err)
	}
	if to, err := os.Readlink(link); err != nil || to != "folder" {
		t.Errorf("Readlink = %q, %v; want folder", to, err)
	}
}

// As root, renaming a file to /dev/null would replace the device.
func TestCopyReplacesOnlyFiles(t *testing.T) {
	dir := t.TempDir()
	src, fifo, link := filepath.Join(dir, "src"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	err := errors.Join(os.WriteFile(src, []byte("x"), 0o600), syscall.Mkfifo(fifo, 0o600), os.Symlink("fifo", link))
	if err != nil {
		t.Fatal(err)
	}
	for _, dst := range []string{fifo, link} {
		before, _ := os.Lstat(dst)
		if _, err := copied(t, hostFiles{}, src, dst); !errdefs.IsInvalidArgument(err) {
			t.Errorf("copy to %s = %v, want InvalidArgument", dst, err)
		}
		if after, err := os.Lstat(dst); err != nil || after.Mode() != before.Mode() {
			t.Errorf("Lstat(%s) = %v, %v; want mode %v", dst, after, err, before.Mode())
		}
	}
}

// oddNames is a sandbox's directory with names that are not text.
type oddNames struct{ hostFiles }

func (o oddNames) list(ctx context.Context, path string) ([]entry, error) {
	list, err := o.hostFiles.list(ctx, path)
	for i := range list {
		list[i].name = strings.ToValidUTF8(list[i].name, "\uFFFD")
	}
	return list, err
}

func TestCopySkipsNonTextNames(t *testing.T) {
	dir := t.TempDir()
	src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
	err := errors.Join(os.Mkdir(src, 0o700), os.Mkdir(filepath.Join(src, "d\xff"), 0o700))
	for _, name := range []string{"a", "f\xff", "d\xff/below", "\uFFFD", "z"} {
		err = errors.Join(err, os.WriteFile(filepath.Join(src, name), []byte(name), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	c, err := copied(t, oddNames{}, src, dst)
	if err != nil || len(c.unnamed) != 2 {
		t.Errorf("copy = %v, skipped %q; want 2 skipped names", err, c.unnamed)
	}
	list, err := os.ReadDir(dst)
	if err != nil || len(list) != 3 {
		t.Errorf("ReadDir = %v, %v; want 3 entries", list, err)
	}
}

// listing is a sandbox's directory that lists one file under another name.
type listing struct {
	hostFiles
	name string
}

func (l listing) list(context.Context, string) ([]entry, error) {
	return []entry{{name: l.name, kind: kindFile, mode: "0600"}}, nil
}

func (l listing) open(context.Context, string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("x")), nil
}

func TestCopyRefusesNamesOutsideDirectory(t *testing.T) {
	for name, ok := range map[string]bool{
		"": false, ".": false, "..": false, "/": false, "../x": false, "/x": false, "a/b": false, "a\x00b": false,
		"a": true, "...": true, `..\x`: true, `C:\x`: true, "NUL": true, "file:stream": true,
	} {
		dir := t.TempDir()
		src, dst := filepath.Join(dir, "src"), filepath.Join(dir, "dst")
		if err := os.Mkdir(src, 0o700); err != nil {
			t.Fatal(err)
		}
		if _, err := copied(t, listing{name: name}, src, dst); (err == nil) != ok || !ok && !errdefs.IsInvalidArgument(err) {
			t.Errorf("copy of an entry %q = %v, want success %t, or InvalidArgument", name, err, ok)
		}
		if list, err := os.ReadDir(dir); err != nil || len(list) != 2 {
			t.Errorf("ReadDir after a copy of an entry %q = %v, %v; want src and dst only", name, list, err)
		}
		if _, err := os.Lstat(filepath.Join(dst, name)); ok && err != nil {
			t.Errorf("Lstat of the copy of an entry %q = %v, want a file", name, err)
		}
	}
}

type zeroes struct{}

func (zeroes) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func TestWriteSparse(t *testing.T) {
	const size = 64<<20 + 7
	name := filepath.Join(t.TempDir(), "f")
	text := io.MultiReader(strings.NewReader("begin"), io.LimitReader(zeroes{}, size-8), strings.NewReader("end"))
	if err := (hostFiles{}).write(t.Context(), name, text, "0600", -1); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(name)
	if err != nil || len(got) != size || string(got[:5]) != "begin" || string(got[size-3:]) != "end" ||
		len(bytes.Trim(got, "\x00")) != size {
		t.Errorf("file has %d bytes, %v; want %d from begin to end", len(got), err, size)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(name, &st); err != nil || st.Blocks*512 > 1<<20 {
		t.Errorf("file uses %d bytes of disk, %v; want at most 1 MiB", st.Blocks*512, err)
	}
	cut := io.MultiReader(io.LimitReader(zeroes{}, 1<<20), iotest.ErrReader(io.ErrUnexpectedEOF))
	if err := (hostFiles{}).write(t.Context(), name+"2", cut, "0600", -1); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("write of a cut file = %v, want io.ErrUnexpectedEOF", err)
	}
	if list, err := os.ReadDir(filepath.Dir(name)); err != nil || len(list) != 1 {
		t.Errorf("ReadDir = %v, %v; want only the first file", list, err)
	}
}
