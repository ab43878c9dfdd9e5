package images

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Each archive either is refused with a reason, or gives exactly the tree.
func TestHostileLayersStayInTheirRoot(t *testing.T) {
	long := strings.Repeat("n", 256)
	outside := t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("untouched"), 0o600); err != nil {
		t.Fatal(err)
	}
	up := strings.Repeat("../", 40) + victim[1:]
	for _, c := range []struct {
		name  string
		items []item
		want  string // the tree
		err   string // or what the error says
	}{
		{"parent in the name", []item{reg("../x", "x")}, "", "has .. in it"},
		{"parent inside the name", []item{reg("a/../../x", "x")}, "", "has .. in it"},
		{"parent at the end", []item{dir("a/..")}, "", "has .. in it"},
		{"absolute name", []item{reg(victim, "x"), reg("/a", "a")}, "", ""},
		{"file through an absolute link", []item{sym("l", outside), reg("l/victim", "x")}, "", ""},
		{"file through a relative link", []item{sym("l", strings.TrimSuffix(up, "/victim")), reg("l/victim", "x")}, "", ""},
		{"file over a link to outside", []item{sym("l", victim), reg("l", "x")}, "l = x\n", ""},
		{"link swapped in for a folder", []item{dir("d"), reg("d/a", "a"), sym("d", outside), reg("d/victim", "x")}, "", ""},
		{"folder swapped in for a link", []item{sym("d", outside), dir("d"), reg("d/victim", "x")}, "d/\nd/victim = x\n", ""},
		{"hard link to outside", []item{hard("h", up)}, "", "has .. in it"},
		{"hard link to an absolute path", []item{hard("h", victim)}, "", "no such file"},
		{"hard link through a link", []item{sym("l", outside), hard("h", "l/victim")}, "", "no such file"},
		{"hard link to a link, then written", []item{sym("l", victim), hard("h", "l"), reg("h", "x")}, "h = x\nl -> " + victim + "\n", ""},
		{"hard link to a folder", []item{dir("d"), hard("h", "d")}, "", "no file"},
		{"hard link to nothing", []item{dir("d"), hard("h", "d/x")}, "", "not there"},
		{"hard link to itself", []item{reg("a", "a"), hard("a", "./a")}, "", "to itself"},
		{"link loop", []item{sym("a", "b"), sym("b", "a"), reg("a/x", "x")}, "", "symbolic links"},
		{"link to itself below", []item{sym("a", "a/b"), reg("a/x", "x")}, "", "symbolic links"},
		{"file below a file", []item{reg("a", "a"), reg("a/x", "x")}, "", "not a folder"},
		{"duplicate files", []item{reg("a", "1"), reg("a", "22"), reg("./a", "333")}, "a = 333\n", ""},
		{"duplicates of all kinds", []item{reg("a", "1"), dir("a"), reg("a/b", "2"), sym("a", "c"), reg("a", "3")}, "a = 3\n", ""},
		{"devices", []item{reg("x", "x"), {tar.Header{Typeflag: tar.TypeBlock, Name: "x", Devmajor: 8}, ""}, {tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}, ""}, {tar.Header{Typeflag: tar.TypeFifo, Name: "fifo"}, ""}, reg("a", "a")}, "a = a\n", ""},
		{"unknown type", []item{{tar.Header{Typeflag: 'Z', Name: "z"}, ""}}, "", "type 'Z' is unknown"},
		{"the root as a file", []item{reg("a/.", "x"), reg(".", "x")}, "", "the root is not a folder"},
		{"the root as a link", []item{sym(".", "/etc")}, "", "the root is not a folder"},
		{"long part of a name", []item{reg(long, "x")}, "", "longer than 255"},
		{"long name", []item{reg(strings.Repeat("d/", 2100)+"x", "x")}, "", "longer than 4096"},
		{"deep name", []item{reg(strings.Repeat("d/", 300)+"x", "x")}, "", "deeper than 256"},
		{"deep by links", []item{dir(strings.Repeat("d/", 200)), sym("l", strings.Repeat("d/", 200)), reg("l/"+strings.Repeat("e/", 100)+"x", "x")}, "", "deeper than 256"},
		{"whiteout of nothing", []item{reg(".wh.", "")}, "", "takes away nothing"},
		{"whiteout of the folder itself", []item{reg("a/.wh..", "")}, "", "takes away nothing"},
		{"whiteout of the folder above", []item{reg("a/.wh...", "")}, "", "takes away nothing"},
		{"whiteout through a link", []item{sym("l", outside), reg("l/.wh.victim", "")}, "l -> " + outside + "\n", ""},
		{"opaque through a link", []item{sym("l", outside), reg("l/.wh..wh..opq", "")}, "l -> " + outside + "\n", ""},
		{"mount point as a link to outside", []item{sym("workspace", outside), sym("tmp", "/etc"), reg("proc", "x")}, "", ""},
		{"invalid UTF-8", []item{reg("\xff\xfe", "x")}, "\xff\xfe = x\n", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, Limits{})
			dir, err := root(t, s, mkTar(t, c.items...))
			switch {
			case c.err != "":
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error is %v, want %q in it", err, c.err)
				}
			case err != nil:
				t.Error(err)
			case c.want != "":
				if diff := cmp.Diff(c.want, listing(t, dir)); diff != "" {
					t.Error(diff)
				}
			}
			if err == nil {
				for _, m := range mountPoints {
					if info, err := os.Lstat(filepath.Join(dir, m)); err != nil || !info.IsDir() {
						t.Errorf("mount point %s: %v, %v", m, info, err)
					}
				}
			}
			if raw, err := os.ReadFile(victim); err != nil || string(raw) != "untouched" {
				t.Fatalf("a file outside was changed: %q, %v", raw, err)
			}
			if entries, err := os.ReadDir(outside); err != nil || len(entries) != 1 {
				t.Fatalf("a file was made outside: %v, %v", entries, err)
			}
			nothingHalfMade(t, s)
		})
	}
}

func TestModesAndOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	s := newStore(t, Limits{})
	suid := reg("suid", "x")
	suid.Mode, suid.Uid, suid.Gid = 0o6755, 12, 34
	suid.PAXRecords = map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", "SCHILY.xattr.user.a": "b"}
	sticky := dir("sticky")
	sticky.Mode = 0o7777
	private := dir("./")
	private.Mode = 0o700
	dir, err := root(t, s, mkTar(t, private, suid, sticky))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"suid": "-rwxr-xr-x 12:34", "sticky": "dtrwxrwxrwx 0:0", ".": "drwxr-xr-x 0:0"} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		stat := info.Sys().(*syscall.Stat_t)
		if got := fmt.Sprintf("%v %d:%d", info.Mode(), stat.Uid, stat.Gid); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
	if n, err := syscall.Listxattr(filepath.Join(dir, "suid"), nil); n != 0 || err != nil {
		t.Errorf("extended attributes: %d bytes, %v", n, err)
	}
	bad := reg("a", "a")
	bad.Uid = 1 << 33
	if _, err := root(t, s, mkTar(t, bad)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("owner over 32 bits: %v", err)
	}
}

func TestBrokenArchivesAreRefused(t *testing.T) {
	l := mkTar(t, reg("a", "aaaa"))
	good := mkDocker(t, "good:1", mkConfig(t, nil, l), false, l)
	twice := func(m *imagespec.Manifest, x *imagespec.Index) {
		x.Manifests = []imagespec.Descriptor{{}, {}}
	}
	for _, c := range []struct {
		name    string
		archive []byte
		class   func(error) bool
		text    string
	}{
		{"empty", nil, errdefs.IsInvalidArgument, "no files"},
		{"text", []byte(strings.Repeat("this is no archive\n", 100)), errdefs.IsInvalidArgument, "not a tar"},
		{"an empty tar", mkTar(t), errdefs.IsInvalidArgument, "no files"},
		{"cut off in a file", good[:len(good)/2], errdefs.IsInvalidArgument, ""},
		{"cut off between files", mkTar(t, reg("a", "a"))[:1024], errdefs.IsInvalidArgument, "cut off"},
		{"zstd", []byte("\x28\xb5\x2f\xfd and more"), errdefs.IsNotImplemented, "zstd"},
		{"gzip cut off", zip(t, good)[:200], errdefs.IsInvalidArgument, ""},
		{"gzip with a wrong checksum", spoil(zip(t, good), 8), errdefs.IsInvalidArgument, ""},
		{"manifest is no JSON", mkTar(t, reg(manifestFile, "{")), errdefs.IsInvalidArgument, manifestFile},
		{"manifest is of another shape", mkTar(t, reg(manifestFile, `{"a":1}`)), errdefs.IsInvalidArgument, manifestFile},
		{"manifest names no image", mkTar(t, reg(manifestFile, `[]`)), errdefs.IsInvalidArgument, "no image"},
		{"manifest is huge", mkTar(t, reg(manifestFile, strings.Repeat(" ", maxDocument+1))), errdefs.IsInvalidArgument, "more than"},
		{"configuration is missing", mkTar(t, reg(manifestFile, `[{"Config":"x.json","Layers":[]}]`)), errdefs.IsInvalidArgument, "x.json"},
		{"configuration is outside", mkTar(t, reg(manifestFile, `[{"Config":"../../etc/passwd","Layers":[]}]`)), errdefs.IsInvalidArgument, "passwd"},
		{"layer is missing", mkTar(t, reg("c", mkConfig(t, nil, l)), reg(manifestFile, `[{"Config":"c","Layers":["x"]}]`)), errdefs.IsInvalidArgument, "not in the archive"},
		{"no layers", mkDocker(t, "a:1", mkConfig(t, nil), false), errdefs.IsInvalidArgument, "no layers"},
		{"other content in a layer", mkDocker(t, "a:1", mkConfig(t, nil, []byte("other")), false, l), errdefs.IsInvalidArgument, "the configuration says"},
		{"fewer digests than layers", mkDocker(t, "a:1", mkConfig(t, nil, l), false, l, l), errdefs.IsInvalidArgument, "2 layers"},
		{"no digest", mkDocker(t, "a:1", mkConfig(t, func(c *config) { c.RootFS.DiffIDs[0] = "../../x" }, l), false, l), errdefs.IsInvalidArgument, "sha256"},
		{"another digest algorithm", mkDocker(t, "a:1", mkConfig(t, func(c *config) { c.RootFS.DiffIDs[0] = "sha512:" + strings.Repeat("0", 128) }, l), false, l), errdefs.IsInvalidArgument, "sha256"},
		{"another architecture", mkDocker(t, "a:1", mkConfig(t, func(c *config) { c.Architecture = "s390x" }, l), false, l), errdefs.IsInvalidArgument, "s390x"},
		{"another system", mkDocker(t, "a:1", mkConfig(t, func(c *config) { c.OS = "windows" }, l), false, l), errdefs.IsInvalidArgument, "windows"},
		{"layer is no tar", mkDocker(t, "a:1", mkConfig(t, nil, bytes.Repeat([]byte("x"), 2048)), false, bytes.Repeat([]byte("x"), 2048)), errdefs.IsInvalidArgument, "layer 0"},
		{"layer leads out", mkDocker(t, "a:1", mkConfig(t, nil, mkTar(t, reg("../a", ""))), false, mkTar(t, reg("../a", ""))), errdefs.IsInvalidArgument, ".."},
		{"too many layers", mkDocker(t, "a:1", mkConfig(t, nil, many(l, 128)...), false, many(l, 128)...), errdefs.IsResourceExhausted, "more than 127"},
		{"OCI layout of a coming version", mkTar(t, reg(layoutFile, `{"imageLayoutVersion":"2.0.0"}`)), errdefs.IsNotImplemented, "2.0.0"},
		{"OCI layout without index", mkTar(t, reg(layoutFile, `{"imageLayoutVersion":"1.0.0"}`)), errdefs.IsInvalidArgument, indexFile},
		{"OCI without platform", mkTar(t, mkOCI(t, "a:1", mkConfig(t, func(c *config) { c.Architecture = "s390x" }, l), nil, l)...), errdefs.IsInvalidArgument, "s390x"},
		{"OCI layer of another size", mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l), func(m *imagespec.Manifest, _ *imagespec.Index) { m.Layers[0].Size++ }, l)...), errdefs.IsInvalidArgument, "announced"},
		{"OCI layer of a foreign type", mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l), func(m *imagespec.Manifest, _ *imagespec.Index) {
			m.Layers[0].MediaType = imagespec.MediaTypeImageLayerZstd
		}, l)...), errdefs.IsNotImplemented, "zstd"},
		{"OCI configuration of a foreign type", mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l), func(m *imagespec.Manifest, _ *imagespec.Index) {
			m.Config.MediaType = "application/vnd.oci.empty.v1+json"
		}, l)...), errdefs.IsInvalidArgument, "not a container image"},
		{"OCI digest with a path", mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l), func(m *imagespec.Manifest, _ *imagespec.Index) {
			m.Layers[0].Digest = "sha256:../../../etc/passwd"
		}, l)...), errdefs.IsInvalidArgument, "sha256"},
		{"OCI with several images without names", mkTar(t, mkOCI(t, "", mkConfig(t, nil, l), twice, l)...), errdefs.IsInvalidArgument, "told apart"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, Limits{})
			_, err := s.Import(t.Context(), bytes.NewReader(c.archive), "test:1")
			if err == nil || !c.class(err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error is %v, want %q in it", err, c.text)
			}
			if len(s.List()) != 0 {
				t.Errorf("it was kept: %v", s.List())
			}
			nothingHalfMade(t, s)
		})
	}
}

// spoil changes a byte, counted from the end.
func spoil(raw []byte, fromEnd int) []byte {
	raw[len(raw)-fromEnd] ^= 0xff
	return raw
}

func many(l []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = l
	}
	return out
}

func TestSwappedOCIBlobsAreRefused(t *testing.T) {
	l := mkTar(t, reg("a", "aaaa"))
	for i := range mkOCI(t, "a:1", mkConfig(t, nil, l), nil, l) {
		items := mkOCI(t, "a:1", mkConfig(t, nil, l), nil, l)
		if !strings.HasPrefix(items[i].Name, "blobs/") {
			continue
		}
		content := []byte(items[i].content)
		items[i].content = string(spoil(content, len(content)/2))
		s := newStore(t, Limits{})
		if _, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, items...)), "test"); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s with a byte changed: %v", items[i].Name, err)
		}
		nothingHalfMade(t, s)
	}
}

func TestLimitsHold(t *testing.T) {
	bomb := zip(t, mkTar(t, reg("zeros", strings.Repeat("\x00", 4<<20))))
	sparse := mkTar(t, reg("a", "a"), reg("b", "b"), reg("c", "c"))
	for _, c := range []struct {
		name    string
		limits  Limits
		archive []byte
	}{
		{"gzip bomb", Limits{Bytes: 1 << 20}, bomb},
		{"entries", Limits{Entries: 2}, sparse},
		{"layers", Limits{Layers: 1}, mkDocker(t, "a:1", mkConfig(t, nil, sparse, sparse), false, sparse, sparse)},
		{"entries of all layers", Limits{Entries: 5}, mkDocker(t, "a:1", mkConfig(t, nil, sparse, sparse), true, sparse, sparse)},
		{"folders that only names make", Limits{Entries: 20}, mkTar(t, reg(strings.Repeat("a/", 15)+"f", ""), reg(strings.Repeat("b/", 15)+"f", ""))},
		{"links through links", Limits{Entries: 100}, mkTar(t, longWay(30)...)},
		{"whiteouts again and again", Limits{Entries: 2000}, mkTar(t, againAndAgain(900)...)},
	} {
		s := newStore(t, c.limits)
		if _, err := root(t, s, c.archive); !errdefs.IsResourceExhausted(err) {
			t.Errorf("%s: %v", c.name, err)
		}
		nothingHalfMade(t, s)
	}
}

// longWay is a name of a few bytes behind links that lead down and up again,
// each through the one before.
func longWay(links int) []item {
	deep := strings.Repeat("/a", 100)
	items := []item{dir(deep + "/x")}
	for i := range links {
		target := deep
		if i > 0 {
			target = fmt.Sprintf("/l%d", i-1)
		}
		items = append(items, sym(fmt.Sprintf("l%d", i), target+strings.Repeat("/x/..", 700)))
	}
	return append(items, reg(fmt.Sprintf("l%d/f", links-1), ""))
}

// againAndAgain looks through a folder of n files as often as that.
func againAndAgain(n int) (items []item) {
	for i := range n {
		items = append(items, reg(fmt.Sprintf("a/%d", i), ""))
	}
	return append(items, slices.Repeat([]item{reg("a/.wh..wh..opq", "")}, n)...)
}

// A link to a folder of 4 KiB, and below it a link to another.
func TestPathsAreBoundedWithoutTheirLinks(t *testing.T) {
	long := strings.TrimSuffix(strings.Repeat(strings.Repeat("d", 240)+"/", 14), "/")
	s := newStore(t, Limits{})
	if _, err := root(t, s, mkTar(t, dir(long), sym("l", long), reg("l/f", ""))); err != nil {
		t.Fatal(err)
	}
	_, err := root(t, s, mkTar(t, dir(long), sym("l", long), dir("l/"+long), sym("m", "l/"+long), reg("m/f", "")))
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "longer than 4096") {
		t.Error(err)
	}
	nothingHalfMade(t, s)
}

func TestAFullDiskLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=3m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(Options{Dir: filepath.Join(mount, "images")})
	if err != nil {
		t.Fatal(err)
	}
	big := mkTar(t, reg("big", strings.Repeat("x", 2<<20)))
	path := filepath.Join(t.TempDir(), "big.tar")
	if err := os.WriteFile(path, big, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), bytes.NewReader(big), "big"); !errdefs.IsResourceExhausted(err) || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("spooled and copied: %v", err)
	}
	nothingHalfMade(t, s)
	image, err := s.ImportPath(t.Context(), path, "big") // once only: fits
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve("big")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := s.Root(t.Context(), resolved); !errdefs.IsResourceExhausted(err) {
			t.Errorf("unpacked: %v", err)
		}
		nothingHalfMade(t, s)
	}
	if err := s.Remove(t.Context(), image.ID); err != nil {
		t.Error(err)
	}
	nothingHalfMade(t, s)
}

// meddler is a context that does something each time it is asked whether it has
// ended.
type meddler struct {
	context.Context
	do func()
}

func (m meddler) Err() error {
	m.do()
	return m.Context.Err()
}

// Whoever can write an archive while it is imported cannot have it remembered as
// another one, which would be given that image when it comes itself.
func TestAnArchiveThatChangesIsNotTakenForAnother(t *testing.T) {
	good, evil := mkTar(t, reg("a", "good")), mkTar(t, reg("a", "evil"))
	want, err := newStore(t, Limits{}).Import(t.Context(), bytes.NewReader(good), "good:1")
	if err != nil {
		t.Fatal(err)
	}
	for after := range 8 {
		s := newStore(t, Limits{})
		path := filepath.Join(t.TempDir(), "a.tar")
		if err := os.WriteFile(path, good, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, 0o666); err != nil {
			t.Fatal(err)
		}
		asked := 0
		ctx := meddler{t.Context(), func() {
			if asked++; asked == after {
				if err := os.WriteFile(path, evil, 0o600); err != nil {
					t.Error(err)
				}
			}
		}}
		if _, err := s.ImportPath(ctx, path, "theirs:1"); err != nil {
			t.Fatal(err)
		}
		got, err := s.Import(t.Context(), bytes.NewReader(good), "ours:1")
		if err != nil || got.ID != want.ID {
			t.Errorf("changed at %d: %s is %s, not %s: %v", after, got.Refs, got.ID, want.ID, err)
		}
	}
}

// A few KiB that become much stop before they take what workspaces need.
func TestSomeRoomStaysFree(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=40m"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(mount, 0); err != nil {
			t.Error(err)
		}
	})
	s, err := Open(Options{Dir: filepath.Join(mount, "images")})
	if err != nil {
		t.Fatal(err)
	}
	zeros := func(n int) []byte { return zip(t, mkTar(t, reg("zeros", strings.Repeat("\x00", n)))) }
	stopped := func(what string, err error) {
		t.Helper()
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "stays free for workspaces") {
			t.Errorf("%s: %v", what, err)
		}
		nothingHalfMade(t, s)
	}
	layer := mkTar(t, reg("zeros", strings.Repeat("\x00", 36<<20)))
	_, err = s.Import(t.Context(), bytes.NewReader(zip(t, layer)), "rootfs")
	stopped("a rootfs", err)
	_, err = s.Import(t.Context(), bytes.NewReader(mkDocker(t, "a:1", mkConfig(t, nil, layer), true, layer)), "")
	stopped("a layer", err)
	// As an archive it fits, and unpacked beside that it does not.
	docker := mkTar(t, reg("zeros", strings.Repeat("\x00", 20<<20)))
	_, err = root(t, s, mkDocker(t, "a:1", mkConfig(t, nil, docker), true, docker))
	stopped("a root", err)
	if _, err := root(t, s, zeros(1<<20)); err != nil {
		t.Errorf("what fits: %v", err)
	}
}

func TestAnEndedContextLeavesNothing(t *testing.T) {
	s := newStore(t, Limits{})
	why := errors.New("the caller went away")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := s.Import(ctx, bytes.NewReader(mkTar(t, reg("a", "a"))), "a"); !errors.Is(err, why) {
		t.Errorf("import: %v", err)
	}
	nothingHalfMade(t, s)
	image, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, reg("a", "a"))), "a")
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve(image.ID)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Root(ctx, resolved); !errors.Is(err, why) {
		t.Errorf("root: %v", err)
	}
	nothingHalfMade(t, s)
}
