package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memoryDir returns a directory on a tmpfs if possible. Unpacking syncs a whole filesystem, which
// is slow on a busy disk.
func memoryDir(tb testing.TB) string {
	tb.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "orchestrator-images-*")
	if err != nil {
		return tb.TempDir()
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	return dir
}

func newStore(tb testing.TB, limits Limits) *Store {
	tb.Helper()
	s, err := Open(Options{Dir: filepath.Join(memoryDir(tb), "images"), Limits: limits})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// item is one entry of a test tar.
type item struct {
	tar.Header
	content string
}

func reg(name, content string) item {
	return item{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, content}
}

func dir(name string) item {
	return item{tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}, ""}
}

func sym(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, ""}
}

func hard(name, target string) item {
	return item{tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644}, ""}
}

func mkTar(tb testing.TB, items ...item) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, i := range items {
		if i.Typeflag == tar.TypeReg && i.Size == 0 {
			i.Size = int64(len(i.content))
		}
		if err := w.WriteHeader(&i.Header); err != nil {
			tb.Fatal(err)
		}
		if _, err := io.WriteString(w, i.content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func zip(tb testing.TB, raw []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		tb.Fatal(err)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func sum(raw []byte) string { return digest.FromBytes(raw).String() }

func toJSON(tb testing.TB, v any) string {
	tb.Helper()
	raw, err := json.Marshal(v)
	if err != nil {
		tb.Fatal(err)
	}
	return string(raw)
}

func mkConfig(tb testing.TB, change func(*config), layers ...[]byte) string {
	tb.Helper()
	c := config{Architecture: goarch, OS: "linux"}
	c.RootFS.Type = "layers"
	for _, l := range layers {
		c.RootFS.DiffIDs = append(c.RootFS.DiffIDs, sum(l))
	}
	if change != nil {
		change(&c)
	}
	return toJSON(tb, c)
}

// mkDocker returns a docker-archive. If pack is set, its layers are compressed.
func mkDocker(tb testing.TB, tag, config string, pack bool, layers ...[]byte) []byte {
	tb.Helper()
	m := dockerManifest{Config: hexOf(sum([]byte(config))) + ".json"}
	if tag != "" {
		m.RepoTags = []string{tag}
	}
	items := make([]item, 0, len(layers)+2)
	for _, l := range layers {
		name := hexOf(sum(l)) + "/layer.tar"
		if pack {
			l = zip(tb, l)
		}
		m.Layers = append(m.Layers, name)
		items = append(items, reg(name, string(l)))
	}
	items = append(items, reg(m.Config, config), reg(manifestFile, toJSON(tb, []dockerManifest{m})))
	return mkTar(tb, items...)
}

// mkOCI returns the files of an OCI layout with gzip layers. change may modify it.
func mkOCI(tb testing.TB, name, config string, change func(*imagespec.Manifest, *imagespec.Index),
	layers ...[]byte) []item {
	tb.Helper()
	blobs := map[string]string{}
	blob := func(media, content string) imagespec.Descriptor {
		d := digest.FromString(content)
		blobs[d.Encoded()] = content
		return imagespec.Descriptor{MediaType: media, Digest: d, Size: int64(len(content))}
	}
	m := imagespec.Manifest{Config: blob(imagespec.MediaTypeImageConfig, config)}
	m.SchemaVersion = 2
	for _, l := range layers {
		m.Layers = append(m.Layers, blob(imagespec.MediaTypeImageLayerGzip, string(zip(tb, l))))
	}
	var x imagespec.Index
	x.SchemaVersion = 2
	if change != nil {
		change(&m, &x)
	}
	if x.Manifests == nil {
		d := blob(imagespec.MediaTypeImageManifest, toJSON(tb, m))
		if name != "" {
			d.Annotations = map[string]string{imagespec.AnnotationRefName: name}
		}
		x.Manifests = []imagespec.Descriptor{d}
	}
	items := []item{reg(layoutFile, `{"imageLayoutVersion":"1.0.0"}`), reg(indexFile, toJSON(tb, x))}
	for hex, content := range blobs {
		items = append(items, reg("blobs/sha256/"+hex, content))
	}
	return items
}

// root imports an archive and unpacks it.
func root(tb testing.TB, s *Store, archive []byte) (string, error) {
	tb.Helper()
	image, err := s.Import(tb.Context(), bytes.NewReader(archive), "test")
	if err != nil {
		return "", err
	}
	resolved, err := s.Resolve(image.ID)
	if err != nil {
		return "", err
	}
	return s.Root(tb.Context(), resolved)
}

// listing returns the content of a directory without the mount points, one file per line.
func listing(tb testing.TB, dir string) string {
	tb.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		for _, m := range append([]string{"."}, mountPoints...) {
			if rel == m {
				return nil
			}
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		b.WriteString(rel)
		switch {
		case info.Mode().Type() == fs.ModeSymlink:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			b.WriteString(" -> " + target)
		case info.IsDir():
			b.WriteString("/")
		default:
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b.WriteString(" = " + string(raw))
		}
		b.WriteString("\n")
		return nil
	})
	if err != nil {
		tb.Fatal(err)
	}
	return b.String()
}

// checkNoLeftovers fails the test if the store has temporary or unknown files.
func checkNoLeftovers(tb testing.TB, s *Store) {
	tb.Helper()
	for _, kind := range []string{"tmp", "archives", "roots"} {
		entries, err := os.ReadDir(s.path(kind))
		if err != nil {
			tb.Fatal(err)
		}
		for _, e := range entries {
			s.mu.Lock()
			_, known := s.index.Images["sha256:"+e.Name()]
			s.mu.Unlock()
			if !known {
				tb.Errorf("leftover %s/%s, want only images of the index", kind, e.Name())
			}
		}
	}
}
