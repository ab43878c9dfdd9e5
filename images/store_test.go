package images

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// layerCases are layers with the tree that they give by the OCI image specification.
var layerCases = []struct {
	name   string
	layers [][]item
	want   string
}{
	{"a later layer replaces files", [][]item{{reg("a", "1"), reg("b", "1")}, {reg("a", "2")}}, "a = 2\nb = 1\n"},
	{"a directory is merged", [][]item{{dir("d"), reg("d/a", "1")}, {dir("d"), reg("d/b", "2")}},
		"d/\nd/a = 1\nd/b = 2\n"},
	{"a file replaces a directory", [][]item{{dir("d"), reg("d/a", "1")}, {reg("d", "2")}}, "d = 2\n"},
	{"a whiteout removes a file", [][]item{{reg("a", "1"), reg("b", "1")}, {reg(".wh.a", "")}}, "b = 1\n"},
	{"a whiteout removes a directory", [][]item{{dir("d"), reg("d/a", "1")}, {reg(".wh.d", "")}}, ""},
	{"a whiteout removes a link, not its target", [][]item{{reg("a", "1"), sym("l", "a")}, {reg(".wh.l", "")}},
		"a = 1\n"},
	{"a whiteout of an unknown path does nothing",
		[][]item{{reg("a", "1")}, {reg(".wh.b", ""), reg("x/y/.wh.z", "")}}, "a = 1\n"},
	{"a whiteout keeps files of its layer, before", [][]item{{reg("a", "1")}, {reg("a", "2"), reg(".wh.a", "")}},
		"a = 2\n"},
	{"a whiteout keeps files of its layer, after", [][]item{{reg("a", "1")}, {reg(".wh.a", ""), reg("a", "2")}},
		"a = 2\n"},
	{"a whiteout of a directory made again",
		[][]item{{dir("d"), reg("d/a", "1")}, {reg("d/b", "2"), reg(".wh.d", "")}}, "d/\nd/b = 2\n"},
	{"an opaque directory, marked first", [][]item{{dir("d"), reg("d/a", "1"), reg("d/s/x", "1")},
		{reg("d/.wh..wh..opq", ""), reg("d/b", "2"), reg("d/s/y", "2")}}, "d/\nd/b = 2\nd/s/\nd/s/y = 2\n"},
	{"an opaque directory, marked last", [][]item{{dir("d"), reg("d/a", "1"), reg("d/s/x", "1")},
		{reg("d/b", "2"), reg("d/s/y", "2"), reg("d/.wh..wh..opq", "")}}, "d/\nd/b = 2\nd/s/\nd/s/y = 2\n"},
	{"files of aufs are ignored", [][]item{{reg(".wh..wh.plnk/1", ""), reg(".wh..wh.aufs", ""), reg("a", "1")}},
		".wh..wh.plnk/\n.wh..wh.plnk/1 = \na = 1\n"},
	{"a file through a link of a lower layer",
		[][]item{{dir("usr/lib"), sym("lib", "usr/lib")}, {reg("lib/a", "2")}},
		"lib -> usr/lib\nusr/\nusr/lib/\nusr/lib/a = 2\n"},
	{"a file through an absolute link", [][]item{{dir("opt/x"), sym("var/x", "/opt/x")}, {reg("var/x/a", "2")}},
		"opt/\nopt/x/\nopt/x/a = 2\nvar/\nvar/x -> /opt/x\n"},
	{"parents in a link come after links",
		[][]item{{dir("a/b"), reg("c", "wrong"), sym("l", "a/b"), sym("m", "l/../c"), reg("m/x", "2")}},
		"a/\na/b/\na/c/\na/c/x = 2\nc = wrong\nl -> a/b\nm -> l/../c\n"},
	{"a whiteout through a link", [][]item{{reg("usr/lib/a", "1"), sym("lib", "usr/lib")}, {reg("lib/.wh.a", "")}},
		"lib -> usr/lib\nusr/\nusr/lib/\n"},
	{"a hard link into a lower layer", [][]item{{reg("a", "1")}, {hard("b", "a")}}, "a = 1\nb = 1\n"},
	{"replacing one hard link leaves the other", [][]item{{reg("a", "1"), hard("b", "/a")}, {reg("b", "2")}},
		"a = 1\nb = 2\n"},
}

func TestApplyLayers(t *testing.T) {
	for _, c := range layerCases {
		t.Run(c.name, func(t *testing.T) {
			var layers [][]byte
			for _, items := range c.layers {
				layers = append(layers, mkTar(t, items...))
			}
			s := newStore(t, Limits{})
			dir, err := root(t, s, mkDocker(t, "a:1", mkConfig(t, nil, layers...), true, layers...))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, listing(t, dir)); diff != "" {
				t.Errorf("files in the root (-want +got):\n%s", diff)
			}
		})
	}
}

// The three formats of one image give the same id and the same root.
func TestFormatsAgree(t *testing.T) {
	l1, l2 := mkTar(t, reg("a", "1"), reg("b", "1")), mkTar(t, reg("a", "2"))
	config := mkConfig(t, func(c *config) { c.Config.Env = []string{"PATH=/old", "A=b", "PATH=/x:/y"} }, l1, l2)
	layoutDir := t.TempDir()
	layout := mkOCI(t, "team/app:3", config, nil, l1, l2)
	writeFiles(t, layoutDir, layout)
	nested := mkOCI(t, "", config, nil, l1, l2)
	for name, from := range map[string][]byte{
		"docker":        mkDocker(t, "team/app:3", config, false, l1, l2),
		"docker gzip":   zip(t, mkDocker(t, "team/app:3", config, true, l1, l2)),
		"oci":           mkTar(t, layout...),
		"oci gzip":      zip(t, mkTar(t, layout...)),
		"oci directory": nil,
		"oci unnamed":   mkTar(t, nested...),
	} {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, Limits{})
			var image Image
			var err error
			switch name {
			case "oci directory":
				image, err = s.ImportPath(t.Context(), layoutDir, "")
			case "oci unnamed":
				if _, err := s.Import(t.Context(), bytes.NewReader(from), ""); !errdefs.IsInvalidArgument(err) {
					t.Errorf("Import without a name: %v, want InvalidArgument", err)
				}
				image, err = s.Import(t.Context(), bytes.NewReader(from), "team/app:3")
			default:
				image, err = s.Import(t.Context(), bytes.NewReader(from), "")
			}
			if err != nil {
				t.Fatal(err)
			}
			if image.ID != sum([]byte(config)) || !slices.Equal(image.Refs, []string{"team/app:3"}) ||
				image.Path != "/x:/y" {
				t.Errorf("Import = %+v, want id %s, name team/app:3, path /x:/y", image, sum([]byte(config)))
			}
			resolved, err := s.Resolve("docker.io/team/app:3")
			if err != nil {
				t.Fatal(err)
			}
			// The archive in the store is itself a docker-archive of this image.
			again := newStore(t, Limits{})
			copied, err := again.ImportPath(t.Context(), resolved.Archive, "")
			if err != nil || copied.ID != image.ID || !slices.Equal(copied.Refs, []string{EngineTag(image.ID)}) {
				t.Errorf("import of the stored archive = %+v, %v; want the same id", copied, err)
			}
			dir, err := s.Root(t.Context(), resolved)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := listing(t, dir), "a = 2\nb = 1\n"; got != want {
				t.Errorf("files in the root:\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// writeFiles writes items as files below dir.
func writeFiles(t *testing.T, dir string, items []item) {
	t.Helper()
	for _, i := range items {
		path := filepath.Join(dir, i.Name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(i.content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOneOfSeveralImages(t *testing.T) {
	l1, l2 := mkTar(t, reg("a", "1")), mkTar(t, reg("a", "2"))
	c1, c2 := mkConfig(t, nil, l1), mkConfig(t, nil, l2)
	archive := mkTar(t, reg("1", c1), reg("2", c2), reg("l1", string(l1)), sym("x/l2", "../l2"), reg("l2", string(l2)),
		reg(manifestFile,
			`[{"Config":"1","RepoTags":["one:1"],"Layers":["l1"]},`+
				`{"Config":"2","RepoTags":["two:2"],"Layers":["x/l2"]}]`))
	s := newStore(t, Limits{})
	for name, config := range map[string]string{"one:1": c1, "two:2": c2} {
		if image, err := s.Import(t.Context(), bytes.NewReader(archive), name); err != nil ||
			image.ID != sum([]byte(config)) {
			t.Errorf("Import(%s) = %+v, %v; want id %s", name, image, err, sum([]byte(config)))
		}
	}
	if _, err := s.Import(t.Context(), bytes.NewReader(archive), "three"); !errdefs.IsInvalidArgument(err) ||
		!strings.Contains(err.Error(), "one:1, two:2") {
		t.Errorf("Import of an unknown name: %v, want InvalidArgument with the known names", err)
	}
}

func TestPlatformsOfAnIndex(t *testing.T) {
	l := mkTar(t, reg("a", "1"))
	s := newStore(t, Limits{})
	items := mkOCI(t, "a:1", mkConfig(t, nil, l), nil, l)
	var top imagespec.Index
	for i, entry := range items {
		if entry.Name != indexFile {
			continue
		}
		if err := decode(memory{indexFile: entry.content}, indexFile, &top); err != nil {
			t.Fatal(err)
		}
		mine := top.Manifests[0]
		mine.Platform = &imagespec.Platform{OS: "linux", Architecture: goarch}
		other := mine
		other.Platform = &imagespec.Platform{OS: "unknown", Architecture: "unknown"}
		inner := toJSON(t, imagespec.Index{Manifests: []imagespec.Descriptor{other, mine}})
		top.Manifests = []imagespec.Descriptor{{MediaType: imagespec.MediaTypeImageIndex, Digest: digestOf(inner),
			Size: int64(len(inner))}}
		items[i] = reg(indexFile, toJSON(t, top))
		items = append(items, reg("blobs/sha256/"+digestOf(inner).Encoded(), inner))
		break
	}
	if _, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, items...)), "a:1"); err != nil {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	s := newStore(t, Limits{})
	if _, err := s.Resolve("nothing"); !errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), "no images imported") {
		t.Errorf("Resolve in an empty store: %v, want NotFound", err)
	}
	image, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, reg("a", "1"))), "debian")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Tag("debian", "other/debian:12"); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"debian", "debian:latest", "docker.io/library/debian", image.ID, hexOf(image.ID)[:12],
		"debian@" + image.ID, "other/debian:12"} {
		if got, err := s.Resolve(ref); err != nil || got.ID != image.ID {
			t.Errorf("Resolve(%s) = %+v, %v; want id %s", ref, got, err, image.ID)
		}
	}
	for ref, want := range map[string]error{"Debian": errdefs.ErrInvalidArgument,
		"": errdefs.ErrInvalidArgument, "a b": errdefs.ErrInvalidArgument,
		"\xff": errdefs.ErrInvalidArgument, "sha256:123": errdefs.ErrNotFound, "../../etc": errdefs.ErrInvalidArgument,
		"alpine": errdefs.ErrNotFound} {
		if _, err := s.Resolve(ref); !errors.Is(err, want) {
			t.Errorf("Resolve(%q) = %v, want the class %v", ref, err, want)
		}
	}
	if _, err := s.Resolve("alpine"); !strings.Contains(err.Error(), "debian:latest, other/debian:12") {
		t.Errorf("Resolve(alpine) = %v, want the known names", err)
	}
	if err := s.Remove(t.Context(), "debian"); err != nil {
		t.Fatal(err)
	}
	if got := s.List(); len(got) != 1 || !slices.Equal(got[0].Refs, []string{"other/debian:12"}) {
		t.Errorf("List after Remove of one name = %+v, want only other/debian:12", got)
	}
	if err := s.Remove(t.Context(), "other/debian:12"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), "other/debian:12"); !errdefs.IsNotFound(err) {
		t.Errorf("second Remove: %v, want NotFound", err)
	}
	if got := s.List(); len(got) != 0 {
		t.Errorf("List after Remove of the last name = %+v, want none", got)
	}
	checkNoLeftovers(t, s)
}

func TestReopenStore(t *testing.T) {
	s := newStore(t, Limits{})
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(path, mkTar(t, reg("a", "1")), 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := s.ImportPath(t.Context(), path, "a")
	if err != nil {
		t.Fatal(err)
	}
	resolved, err := s.Resolve("a")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := s.Root(t.Context(), resolved)
	if err != nil {
		t.Fatal(err)
	}
	// Files that a crash can leave.
	for _, left := range []string{"tmp/x", "roots/" + strings.Repeat("1", 64), "archives/" + strings.Repeat("2", 64)} {
		if err := os.MkdirAll(s.path(left), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	again, err := Open(Options{Dir: s.dir})
	if err != nil {
		t.Fatal(err)
	}
	checkNoLeftovers(t, again)
	if got, err := again.Resolve("a"); err != nil || got.ID != first.ID || got.Root != dir {
		t.Errorf("Resolve after Open = %+v, %v; want id %s in %s", got, err, first.ID, dir)
	}
	all := Collection{Budget: 1, Fresh: -1, Needed: map[string][]string{first.ID: {"a test"}}}
	if got, err := again.Collect(t.Context(), all); err != nil || got.Freed != 0 {
		t.Errorf("Collect of a needed image = %+v, %v; want none", got, err)
	}
	all.Needed = nil
	if got, err := again.Collect(t.Context(), all); err != nil || !got.Verdicts[0].Removed || got.Used != 0 {
		t.Errorf("Collect = %+v, %v; want the image removed", got, err)
	}
	checkNoLeftovers(t, again)
	if err := os.WriteFile(s.path("index.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{Dir: s.dir}); !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "index.json") {
		t.Errorf("Open with a damaged index: %v, want DataLoss", err)
	}
}

func TestRepeatedImport(t *testing.T) {
	s := newStore(t, Limits{})
	l := mkTar(t, reg("a", "1"))
	raw := zip(t, mkDocker(t, "a:1", mkConfig(t, nil, l), false, l))
	path := filepath.Join(t.TempDir(), "a.tar")
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	first, err := s.ImportPath(t.Context(), path, "")
	if err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(s.archivePath(first.ID))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Tag("a:1", "b"); err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{"", "c", "a:1"} {
		if got, err := s.ImportPath(t.Context(), path, ref); err != nil || got.ID != first.ID {
			t.Errorf("ImportPath(%q) again = %+v, %v; want id %s", ref, got, err, first.ID)
		}
		if got, err := s.Import(t.Context(), bytes.NewReader(raw), ref); err != nil || got.ID != first.ID {
			t.Errorf("Import(%q) again = %+v, %v; want id %s", ref, got, err, first.ID)
		}
	}
	if after, err := os.Stat(s.archivePath(first.ID)); err != nil || !os.SameFile(before, after) {
		t.Errorf("Stat of the archive = %v, %v; want the first file", after, err)
	}
	if got, err := s.Get("c"); err != nil || !slices.Equal(got.Refs, []string{"a:1", "b:latest", "c:latest"}) {
		t.Errorf("Get(c) = %+v, %v; want names a:1, b:latest, c:latest", got, err)
	}
	// Another file at the same path is another image.
	if err := os.WriteFile(path, mkTar(t, reg("b", "2")), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := s.ImportPath(t.Context(), path, "c"); err != nil || got.ID == first.ID {
		t.Errorf("ImportPath of a changed file = %+v, %v; want another id", got, err)
	}
	// A removed image is imported again.
	if err := s.Remove(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Import(t.Context(), bytes.NewReader(raw), ""); err != nil || got.ID != first.ID {
		t.Errorf("Import after Remove = %+v, %v; want id %s", got, err, first.ID)
	}
}

func TestImportPathErrors(t *testing.T) {
	s := newStore(t, Limits{})
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		fifo: errdefs.ErrInvalidArgument, t.TempDir(): errdefs.ErrInvalidArgument,
		filepath.Join(fifo+"x", "none"): errdefs.ErrNotFound, "/dev/zero": errdefs.ErrInvalidArgument,
	} {
		if _, err := s.ImportPath(t.Context(), path, "a"); !errors.Is(err, want) {
			t.Errorf("ImportPath(%s) = %v, want the class %v", path, err, want)
		}
	}
}

func TestRootUnpacksOnce(t *testing.T) {
	s := newStore(t, Limits{})
	if _, err := s.Import(t.Context(), bytes.NewReader(mkTar(t, reg("a", "1"))), "a"); err != nil {
		t.Fatal(err)
	}
	image, err := s.Resolve("a")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			if dir, err := s.Root(t.Context(), image); err != nil || dir != s.rootPath(image.ID) {
				t.Errorf("Root = %s, %v; want %s", dir, err, s.rootPath(image.ID))
			}
		})
	}
	group.Wait()
	checkNoLeftovers(t, s)
	for _, id := range []string{"", "sha256:" + strings.Repeat("0", 64), "../../etc"} {
		if _, err := s.Root(t.Context(), runtime.Image{ID: id}); err == nil {
			t.Errorf("Root(%q) = nil error, want an error", id)
		}
	}
	// Damage of the archive on disk is detected.
	f, err := os.OpenFile(s.archivePath(image.ID), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("2"), 1024); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Dir(s.rootPath(image.ID))); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Root(t.Context(), image); err == nil {
		t.Error("Root of a damaged archive succeeded, want an error")
	}
	checkNoLeftovers(t, s)
}
