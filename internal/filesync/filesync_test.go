package filesync

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

var (
	room = Limits{Bytes: 1 << 20}
	me   = Owner{UID: os.Getuid(), GID: os.Getgid()}
)

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// tree makes a directory with files: "d/" is a directory, "l -> x" a link, and anything else a
// file.
func tree(tb testing.TB, files map[string]string) string {
	tb.Helper()
	dir := tb.TempDir()
	for name, content := range files {
		at := filepath.Join(dir, name)
		must(tb, os.MkdirAll(filepath.Dir(at), 0o755))
		switch target, isLink := strings.CutPrefix(content, "-> "); {
		case strings.HasSuffix(name, "/"):
			must(tb, os.MkdirAll(at, 0o755))
		case isLink:
			must(tb, os.Symlink(target, at))
		default:
			must(tb, os.WriteFile(at, []byte(content), 0o644))
		}
	}
	return dir
}

// look returns a directory's content in the format of tree.
func look(tb testing.TB, dir string) map[string]string {
	tb.Helper()
	got := map[string]string{}
	must(tb, filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		name, _ := filepath.Rel(dir, at)
		switch {
		case d.IsDir():
			got[name+"/"] = ""
		case d.Type() == fs.ModeSymlink:
			target, err := os.Readlink(at)
			got[name] = "-> " + target
			return err
		case d.Type().IsRegular():
			b, err := os.ReadFile(at)
			got[name] = string(b)
			return err
		default:
			got[name] = "special"
		}
		return nil
	}))
	return got
}

func packed(tb testing.TB, dir string, known Known) []byte {
	tb.Helper()
	var b bytes.Buffer
	_, err := Pack(tb.Context(), &b, dir, room, known)
	must(tb, err)
	return b.Bytes()
}

func TestPackUnpackRoundTrip(t *testing.T) {
	files := map[string]string{
		"a":           "1",
		"d/b":         "22",
		"d/deep/er/c": "",
		"empty/":      "",
		"l":           "-> /etc/passwd",
		"d/up":        "-> ../..",
		"name\xff\n":  "x",
		"hole":        strings.Repeat("\x00", 300_000) + "x",
	}
	src, inside := tree(t, files), t.TempDir()
	must(t, os.Chmod(filepath.Join(src, "a"), 0o4751))
	when := time.Unix(1_500_000_000, 123_000_000)
	must(t, os.Chtimes(filepath.Join(src, "d/deep"), when, when))
	sum, err := Unpack(t.Context(), bytes.NewReader(packed(t, src, nil)), inside, room, false)
	must(t, err)
	want := look(t, src)
	if diff := cmp.Diff(want, look(t, inside)); diff != "" || sum.Entries != len(want) {
		t.Errorf("Unpack = %+v, want %d entries (-want +got):\n%s", sum, len(want), diff)
	}
	if info, err := os.Lstat(filepath.Join(inside, "a")); err != nil || info.Mode() != 0o751 {
		t.Errorf("Lstat = %v, %v; want mode 751", info, err)
	}
	if info, err := os.Lstat(filepath.Join(inside, "d/deep")); err != nil || !info.ModTime().Equal(when) {
		t.Errorf("Lstat = %v, %v; want the time %v", info, err, when)
	}
	known, err := Remember(t.Context(), inside)
	must(t, err)
	must(t, errors.Join(
		os.Remove(
			filepath.Join(inside, "a"),
		),
		os.WriteFile(filepath.Join(inside, "d/b"), []byte("33"), 0o644),
		os.RemoveAll(filepath.Join(inside, "empty")),
		os.WriteFile(
			filepath.Join(inside, "empty"),
			[]byte("a file now"),
			0o600,
		),
		os.Remove(filepath.Join(inside, "l")),
		os.Mkdir(filepath.Join(inside, "l"), 0o700),
		os.WriteFile(filepath.Join(inside, "l/x"), []byte("x"), 0o000),
		unix.Mkfifo(filepath.Join(inside, "fifo"), 0o644),
	))
	must(t, unix.Mkfifo(filepath.Join(src, "stays"), 0o644))
	stream := packed(t, inside, known)
	if len(stream) > 100_000 {
		t.Errorf("the changes have %d bytes, want at most 100000", len(stream))
	}
	sum, err = Apply(t.Context(), bytes.NewReader(stream), src, room, me)
	must(t, err)
	must(t, os.Remove(filepath.Join(inside, "fifo")))
	got := look(t, src)
	delete(got, "stays")
	if diff := cmp.Diff(look(t, inside), got); diff != "" || sum.Kept != 3 {
		t.Errorf("Apply = %+v, want 3 kept (-want +got):\n%s", sum, diff)
	}
}

func TestUnpackReadOnlyDropsWriteBits(t *testing.T) {
	inside := t.TempDir()
	_, err := Unpack(
		t.Context(),
		bytes.NewReader(packed(t, tree(t, map[string]string{"d/f": "x"}), nil)),
		inside,
		room,
		true,
	)
	must(t, err)
	for name, want := range map[string]fs.FileMode{"d": fs.ModeDir | 0o555, "d/f": 0o444} {
		if info, err := os.Lstat(filepath.Join(inside, name)); err != nil || info.Mode() != want {
			t.Errorf("mode of %s = %v, %v; want %v", name, info.Mode(), err, want)
		}
	}
}

// stream returns a tar stream with arbitrary headers.
func stream(tb testing.TB, headers ...tar.Header) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Format = tar.FormatPAX
		must(tb, w.WriteHeader(&h))
		_, err := w.Write(make([]byte, h.Size))
		must(tb, err)
	}
	must(
		tb,
		w.WriteHeader(
			&tar.Header{
				Typeflag:   tar.TypeXGlobalHeader,
				Name:       "end",
				PAXRecords: map[string]string{endRecord: fmt.Sprint(len(headers))},
			},
		),
	)
	must(tb, w.Close())
	return b.Bytes()
}

func file(name string, size int64) tar.Header {
	return tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size}
}

func TestApplyHostileStreamChangesNothing(t *testing.T) {
	dir := tar.Header{Typeflag: tar.TypeDir, Name: "d"}
	many := make([]tar.Header, 5000)
	for i := range many {
		many[i] = file(strings.Repeat("x", 200)+"/"+fmt.Sprint(i), 0)
	}
	honest := packed(t, tree(t, map[string]string{"a": "new", "b": "new"}), nil)
	for what, c := range map[string][]byte{
		"up":                     stream(t, file("../out", 1)),
		"up in the middle":       stream(t, dir, file("d/../../out", 1)),
		"absolute":               stream(t, file("/out", 1)),
		"the folder itself":      stream(t, tar.Header{Typeflag: tar.TypeDir, Name: "."}),
		"not clean":              stream(t, dir, file("d//x", 1)),
		"the stage":              stream(t, tar.Header{Typeflag: tar.TypeDir, Name: StageName}),
		"into the stage":         stream(t, file(StageName+"/list", 1)),
		"through a link":         stream(t, tar.Header{Typeflag: tar.TypeSymlink, Name: "l", Linkname: "/etc"}, file("l/out", 1)),
		"twice":                  stream(t, file("x", 1), file("x", 1)),
		"without its folder":     stream(t, file("no/x", 1)),
		"below a file":           stream(t, file("x", 1), file("x/y", 1)),
		"a device":               stream(t, tar.Header{Typeflag: tar.TypeChar, Name: "x", Devmajor: 1, Devminor: 3}),
		"a hard link":            stream(t, file("x", 1), tar.Header{Typeflag: tar.TypeLink, Name: "y", Linkname: "x"}),
		"a FIFO":                 stream(t, tar.Header{Typeflag: tar.TypeFifo, Name: "x"}),
		"too large":              stream(t, file("x", room.Bytes+1)),
		"too large together":     stream(t, file("x", room.Bytes/2+1), file("y", room.Bytes/2+1)),
		"many without folder":    stream(t, many...),
		"a long name":            stream(t, file(strings.Repeat("x", 300), 1)),
		"kept that is not there": stream(t, tar.Header{Typeflag: tar.TypeReg, Name: "new", PAXRecords: map[string]string{keepRecord: "0"}}),
		"kept of another size":   stream(t, tar.Header{Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{keepRecord: "77"}}),
		"kept and huge": stream(t, tar.Header{
			Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{keepRecord: "9223372036854775807"},
		}),
		"kept and no number": stream(t, tar.Header{Typeflag: tar.TypeReg, Name: "a", PAXRecords: map[string]string{keepRecord: "x"}}),
		"no archive":         []byte(strings.Repeat("nonsense", 1000)),
		"cut in a header":    honest[:700],
		"more after its end": append(bytes.Clone(honest), make([]byte, 4<<20)...),
	} {
		t.Run(what, func(t *testing.T) {
			before := map[string]string{"a": "1", "d/": "", "d/b": "22", "l": "-> d"}
			host := tree(t, map[string]string{"a": "1", "d/b": "22", "l": "-> d"})
			if _, err := Apply(t.Context(), bytes.NewReader(c), host, room, me); err == nil {
				t.Error("Apply of a hostile stream succeeded, want error")
			}
			if diff := cmp.Diff(before, look(t, host)); diff != "" {
				t.Errorf("the workspace changed (-want +got):\n%s", diff)
			}
			if _, err := os.Lstat(filepath.Join(filepath.Dir(host), "out")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Lstat of a file outside = %v, want ErrNotExist", err)
			}
		})
	}
}

// broken returns an error at the end of r.
type broken struct{ r io.Reader }

func (b broken) Read(p []byte) (int, error) {
	n, err := b.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = errors.New("the sandbox went away")
	}
	return n, err
}

func TestApplyCutStreamChangesNothing(t *testing.T) {
	whole := packed(t, tree(t, map[string]string{"a": "new", "d/c": "new", "l": "-> a"}), nil)
	host := tree(t, map[string]string{"a": "1", "d/b": "22"})
	before := look(t, host)
	for n := 0; n <= len(whole); n += 97 {
		if _, err := Apply(t.Context(), broken{bytes.NewReader(whole[:n])}, host, room, me); err == nil {
			t.Fatalf("Apply of %d of %d bytes succeeded, want an error", n, len(whole))
		}
		if diff := cmp.Diff(before, look(t, host)); diff != "" {
			t.Fatalf("files after a cut at byte %d (-want +got):\n%s", n, diff)
		}
	}
	if _, err := Apply(t.Context(), broken{bytes.NewReader(whole)}, host, room, me); err == nil {
		t.Error("Apply of a stream that ends with an error succeeded, want an error")
	}
}

func TestRecoverCompletesOrDiscards(t *testing.T) {
	next := tree(t, map[string]string{"a": "new", "d/c": "new", "was": "-> a", "f/g": "x"})
	whole := packed(t, next, nil)
	old := map[string]string{"a": "1", "d/b": "22", "was/x": "1", "f": "a file"}
	begin := func() (string, *os.Root) {
		host := tree(t, old)
		root, err := openRoot(host)
		must(t, err)
		t.Cleanup(func() { root.Close() })
		_, err = receiveStage(t.Context(), root, bytes.NewReader(whole), room, me)
		must(t, err)
		return host, root
	}
	for what, c := range map[string]struct {
		crash func(host string, root *os.Root)
		done  bool
	}{
		"received": {func(string, *os.Root) {}, true},
		"cleaned": {func(host string, root *os.Root) {
			list, err := readList(root)
			must(t, errors.Join(err, removeUnlisted(t.Context(), host, root, list)))
		}, true},
		"some placed": {func(host string, root *os.Root) {
			list, err := readList(root)
			must(t, errors.Join(err, removeUnlisted(t.Context(), host, root, list)))
			for _, e := range list[:len(list)/2] {
				must(t, placeEntry(root, e, me))
			}
		}, true},
		"not whole": {func(_ string, root *os.Root) { must(t, root.Rename(listName, listPart)) }, false},
	} {
		t.Run(what, func(t *testing.T) {
			host, root := begin()
			c.crash(host, root)
			for range 2 {
				must(t, Recover(t.Context(), host, me))
			}
			want := look(t, next)
			if !c.done {
				want = look(t, tree(t, old))
			}
			if diff := cmp.Diff(want, look(t, host)); diff != "" {
				t.Errorf("files after Recover (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecoverIgnoresStageOfCommand(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	host := tree(t, map[string]string{"a": "1", StageName + "/list": `{"n":"YQ==","k":"d","t":"2020-01-01T00:00:00Z"}`})
	must(t, os.Chmod(filepath.Join(host, StageName), 0o700))
	must(t, os.Lchown(filepath.Join(host, StageName), 1000, 1000))
	must(t, Recover(t.Context(), host, me))
	if diff := cmp.Diff(map[string]string{"a": "1"}, look(t, host)); diff != "" {
		t.Errorf("files after Recover (-want +got):\n%s", diff)
	}
}

func TestTooLargeErrorNamesFile(t *testing.T) {
	dir := tree(t, map[string]string{"small": "x", "big": strings.Repeat("x", 5000)})
	sum, err := Measure(t.Context(), dir, Limits{Bytes: 1 << 40})
	if err != nil || sum.Room != 12<<10 || sum.Bytes != 5001 {
		t.Errorf("Measure = %+v, %v; want 12 KiB of room, 5001 bytes", sum, err)
	}
	_, err = Pack(t.Context(), io.Discard, dir, Limits{Bytes: 4096}, nil)
	if e, ok := errors.AsType[*TooLargeError](err); !ok || !errdefs.IsFailedPrecondition(err) || e.Limit != 4096 {
		t.Errorf("Pack = %#v, want a TooLargeError of 4096 with the class FailedPrecondition", err)
	}
}

func TestCancelledContextStops(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("given up"))
	if _, err := Pack(ctx, io.Discard, tree(t, map[string]string{"a": "1"}), room, nil); err == nil ||
		!strings.Contains(err.Error(), "given up") {
		t.Errorf("Pack = %v, want an error with \"given up\"", err)
	}
}

func FuzzApply(f *testing.F) {
	src := tree(f, map[string]string{"a": "1", "d/b": "22", "l": "-> a"})
	f.Add(packed(f, src, nil))
	f.Add(packed(f, src, Known{nameKey("a"): 1}))
	f.Fuzz(func(t *testing.T, b []byte) {
		top := t.TempDir()
		host := filepath.Join(top, "host")
		must(t, os.Mkdir(host, 0o755))
		must(t, os.WriteFile(filepath.Join(top, "out"), []byte("1"), 0o600))
		_, _ = Apply(t.Context(), bytes.NewReader(b), host, Limits{Bytes: 1 << 16}, me)
		if got, err := os.ReadFile(filepath.Join(top, "out")); err != nil || string(got) != "1" {
			t.Fatalf("the file outside = %q, %v; want 1", got, err)
		}
		if _, err := os.Lstat(filepath.Join(host, StageName)); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("Lstat of the stage = %v, want ErrNotExist", err)
		}
	})
}
