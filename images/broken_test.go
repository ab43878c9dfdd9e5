package images

import (
	"bytes"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

type brokenArchive struct {
	name    string
	archive []byte
	class   func(error) bool
	text    string
}

// brokenDockerArchives returns tars and docker-archives that must be refused.
func brokenDockerArchives(t *testing.T) []brokenArchive {
	t.Helper()
	l := mkTar(t, reg("a", "aaaa"))
	good := mkDocker(t, "good:1", mkConfig(t, nil, l), false, l)
	return []brokenArchive{
		{"empty", nil, errdefs.IsInvalidArgument, "is empty"},
		{"text", []byte(strings.Repeat("not an archive\n", 100)), errdefs.IsInvalidArgument, "damaged tar"},
		{"an empty tar", mkTar(t), errdefs.IsInvalidArgument, "is empty"},
		{"truncated in a file", good[:len(good)/2], errdefs.IsInvalidArgument, ""},
		{"truncated between files", mkTar(t, reg("a", "a"))[:1024], errdefs.IsInvalidArgument, "truncated"},
		{"zstd", []byte("\x28\xb5\x2f\xfd and more"), errdefs.IsNotImplemented, "zstd"},
		{"gzip truncated", zip(t, good)[:200], errdefs.IsInvalidArgument, ""},
		{"gzip with a wrong checksum", spoil(zip(t, good), 8), errdefs.IsInvalidArgument, ""},
		{"manifest is not JSON", mkTar(t, reg(manifestFile, "{")), errdefs.IsInvalidArgument, manifestFile},
		{"manifest is of another shape", mkTar(t, reg(manifestFile, `{"a":1}`)), errdefs.IsInvalidArgument,
			manifestFile},
		{"manifest without images", mkTar(t, reg(manifestFile, `[]`)), errdefs.IsInvalidArgument,
			"images without names"},
		{"manifest is huge", mkTar(t, reg(manifestFile, strings.Repeat(" ", maxDocument+1))), errdefs.IsInvalidArgument,
			"more than"},
		{"configuration is missing", mkTar(t, reg(manifestFile, `[{"Config":"x.json","Layers":[]}]`)),
			errdefs.IsInvalidArgument, "x.json"},
		{"configuration is outside", mkTar(t, reg(manifestFile, `[{"Config":"../../etc/passwd","Layers":[]}]`)),
			errdefs.IsInvalidArgument, "passwd"},
		{"layer is missing", mkTar(t, reg("c", mkConfig(t, nil, l)),
			reg(manifestFile, `[{"Config":"c","Layers":["x"]}]`)), errdefs.IsInvalidArgument, "not in the archive"},
		{"no layers", mkDocker(t, "a:1", mkConfig(t, nil), false), errdefs.IsInvalidArgument, "no layers"},
		{"other content in a layer", mkDocker(t, "a:1", mkConfig(t, nil, []byte("other")), false, l),
			errdefs.IsInvalidArgument, "as in the configuration"},
		{"fewer digests than layers", mkDocker(t, "a:1", mkConfig(t, nil, l), false, l, l), errdefs.IsInvalidArgument,
			"2 layers"},
		{"no digest", mkDocker(t, "a:1", mkConfig(t, func(c *config) { c.RootFS.DiffIDs[0] = "../../x" }, l), false, l),
			errdefs.IsInvalidArgument, "sha256"},
		{"another digest algorithm",
			mkDocker(t, "a:1",
				mkConfig(t, func(c *config) { c.RootFS.DiffIDs[0] = "sha512:" + strings.Repeat("0", 128) }, l),
				false, l), errdefs.IsInvalidArgument, "sha256"},
		{"another architecture", mkDocker(t, "a:1", mkConfig(t, func(c *config) { c.Architecture = "s390x" }, l), false,
			l), errdefs.IsInvalidArgument, "s390x"},
		{"another system", mkDocker(t, "a:1", mkConfig(t, func(c *config) { c.OS = "windows" }, l), false, l),
			errdefs.IsInvalidArgument, "windows"},
		{"layer is not a tar", mkDocker(t, "a:1", mkConfig(t, nil, bytes.Repeat([]byte("x"), 2048)),
			false, bytes.Repeat([]byte("x"), 2048)), errdefs.IsInvalidArgument, "layer 0"},
		{"layer leads out", mkDocker(t, "a:1", mkConfig(t, nil, mkTar(t, reg("../a", ""))), false,
			mkTar(t, reg("../a", ""))), errdefs.IsInvalidArgument, ".."},
		{"too many layers", mkDocker(t, "a:1", mkConfig(t, nil, many(l, 128)...), false, many(l, 128)...),
			errdefs.IsResourceExhausted, "more than 127"},
	}
}

// brokenOCIArchives returns OCI layouts that must be refused.
func brokenOCIArchives(t *testing.T) []brokenArchive {
	t.Helper()
	l := mkTar(t, reg("a", "aaaa"))
	twice := func(m *imagespec.Manifest, x *imagespec.Index) {
		x.Manifests = []imagespec.Descriptor{{}, {}}
	}
	return []brokenArchive{
		{"OCI layout of a newer version", mkTar(t, reg(layoutFile, `{"imageLayoutVersion":"2.0.0"}`)),
			errdefs.IsNotImplemented, "2.0.0"},
		{"OCI layout without index", mkTar(t, reg(layoutFile, `{"imageLayoutVersion":"1.0.0"}`)),
			errdefs.IsInvalidArgument, indexFile},
		{"OCI without platform",
			mkTar(t, mkOCI(t, "a:1", mkConfig(t, func(c *config) { c.Architecture = "s390x" }, l), nil, l)...),
			errdefs.IsInvalidArgument, "s390x"},
		{"OCI layer of another size",
			mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l),
				func(m *imagespec.Manifest, _ *imagespec.Index) { m.Layers[0].Size++ }, l)...),
			errdefs.IsInvalidArgument, ", want "},
		{"OCI layer of another type",
			mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l), func(m *imagespec.Manifest, _ *imagespec.Index) {
				m.Layers[0].MediaType = imagespec.MediaTypeImageLayerZstd
			}, l)...), errdefs.IsNotImplemented, "zstd"},
		{"OCI configuration of another type",
			mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l), func(m *imagespec.Manifest, _ *imagespec.Index) {
				m.Config.MediaType = "application/vnd.oci.empty.v1+json"
			}, l)...), errdefs.IsInvalidArgument, "not a container image"},
		{"OCI digest with a path",
			mkTar(t, mkOCI(t, "a:1", mkConfig(t, nil, l), func(m *imagespec.Manifest, _ *imagespec.Index) {
				m.Layers[0].Digest = "sha256:../../../etc/passwd"
			}, l)...), errdefs.IsInvalidArgument, "sha256"},
		{"OCI with several images without names", mkTar(t, mkOCI(t, "", mkConfig(t, nil, l), twice, l)...),
			errdefs.IsInvalidArgument, "without names"},
	}
}

func TestBrokenArchives(t *testing.T) {
	for _, c := range append(brokenDockerArchives(t), brokenOCIArchives(t)...) {
		t.Run(c.name, func(t *testing.T) {
			s := newStore(t, Limits{})
			_, err := s.Import(t.Context(), bytes.NewReader(c.archive), "test:1")
			if err == nil || !c.class(err) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("error %v, want %q", err, c.text)
			}
			if len(s.List()) != 0 {
				t.Errorf("images after an error: %v, want none", s.List())
			}
			checkNoLeftovers(t, s)
		})
	}
}

// spoil flips a byte, counted from the end.
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
