package images

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// memory implements files in memory.
type memory map[string]string

func (m memory) has(name string) bool { _, ok := m[name]; return ok }

func (m memory) open(name string) (io.ReadCloser, int64, error) {
	content, ok := m[name]
	if !ok {
		return nil, 0, errNoFile
	}
	return io.NopCloser(strings.NewReader(content)), int64(len(content)), nil
}

func digestOf(content string) digest.Digest { return digest.FromString(content) }

// An import creates no file outside the store, and the store stays consistent.
func FuzzImport(f *testing.F) {
	l := mkTar(f, dir("d"), reg("d/a", "1"), sym("l", "/d"), hard("h", "d/a"), reg("l/.wh.a", ""),
		reg("d/.wh..wh..opq", ""))
	config := mkConfig(f, nil, l)
	f.Add(l)
	f.Add(zip(f, l))
	f.Add(mkDocker(f, "a:1", config, false, l))
	f.Add(mkTar(f, mkOCI(f, "a:1", config, nil, l)...))
	f.Add(mkTar(f, sym("a", "../../.."), reg("a/outside", "x")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		top := memoryDir(t)
		s, err := Open(Options{Dir: filepath.Join(top, "s", "images"), Limits: Limits{Bytes: 1 << 20, Entries: 100}})
		if err != nil {
			t.Fatal(err)
		}
		image, err := s.Import(t.Context(), bytes.NewReader(raw), "fuzz")
		if err == nil {
			_, _ = s.Root(t.Context(), runtime.Image{ID: image.ID}) // an error is fine
		}
		checkNoLeftovers(t, s)
		for _, dir := range []string{top, filepath.Join(top, "s")} {
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 1 {
				t.Fatalf("files outside the store: %v, %v; want only the store", entries, err)
			}
		}
	})
}

// Documents in archives are untrusted.
func FuzzDocuments(f *testing.F) {
	l := mkTar(f, reg("a", "1"))
	config := mkConfig(f, nil, l)
	m := `{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"` + sum([]byte(config)) + `","size":1}`
	f.Add(`[{"Config":"c","RepoTags":["a:1"],"Layers":["c"]}]`, config, `{"manifests":[`+m+`]}`)
	f.Add(`[{},{}]`, `{"rootfs":{"type":"layers","diff_ids":["x"]}}`, `{"manifests":[]}`)
	f.Fuzz(func(t *testing.T, manifest, config, index string) {
		blob := "blobs/sha256/" + digestOf(config).Encoded()
		limits := Limits{}.withDefaults()
		for _, m := range []memory{
			{manifestFile: manifest, "c": config},
			{layoutFile: `{"imageLayoutVersion":"1.0.0"}`, indexFile: index, blob: config},
		} {
			s, err := open(m, "a:1", limits, goarch)
			if err != nil {
				continue
			}
			for _, l := range s.layers {
				if checkDigest(l.diff) != nil || l.blob != "" && checkDigest(l.blob) != nil {
					t.Errorf("layer = %+v, want valid digests", l)
				}
			}
			if len(fmt.Sprint(s.name)) > maxDocument || len(s.layers) > limits.Layers {
				t.Errorf("%d layers and a name of %d bytes, want at most %d and %d", len(s.layers), len(fmt.Sprint(s.name)),
					limits.Layers, maxDocument)
			}
		}
	})
}
