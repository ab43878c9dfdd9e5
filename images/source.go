package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

const goarch = goruntime.GOARCH

// Files at the top of an archive that identify its format.
const (
	manifestFile = "manifest.json"
	layoutFile   = "oci-layout"
	indexFile    = "index.json"
)

// Values of Image.Format.
const (
	formatRootFS   = "rootfs"
	formatDocker   = "docker-archive"
	formatOCI      = "oci"
	formatRegistry = "registry"
)

// source is an image found in an archive. config is its raw configuration; a rootfs has none yet.
type source struct {
	format string
	config []byte
	layers []layer
	// name is the name of the image in the archive, or "". only reports that the archive contains
	// no other image.
	name string
	only bool
}

type layer struct {
	open func() (io.ReadCloser, int64, error)
	// blob is the digest of the layer as stored, or "" if unknown. diff is the digest of the
	// uncompressed content.
	blob, diff string
}

// config is the part of an image configuration that is used. All else (VOLUME, HEALTHCHECK, USER,
// ENTRYPOINT, ONBUILD, labels) is ignored.
type config struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
	Config       struct {
		Env []string `json:"Env"`
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
}

// readConfig parses a configuration and checks it against this host and the number of layers.
func readConfig(raw []byte, layers, most int, arch string) (config, error) {
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return config{}, invalid("image configuration: %v", err)
	}
	switch {
	case c.OS != "" && c.OS != "linux":
		return config{}, invalid("image is for %q, want linux", clip.Message(c.OS))
	case c.Architecture != "" && c.Architecture != arch:
		return config{}, invalid("image is for architecture %q, want %s", clip.Message(c.Architecture), arch)
	case c.RootFS.Type != "layers":
		return config{}, invalid("image configuration: rootfs.type is %q, not \"layers\"", clip.Message(c.RootFS.Type))
	case len(c.RootFS.DiffIDs) != layers:
		return config{}, invalid("image has %d layers, but its configuration lists %d", layers, len(c.RootFS.DiffIDs))
	case layers == 0:
		return config{}, invalid("image has no layers")
	case layers > most:
		return config{}, fmt.Errorf("image has %d layers, more than %d: %w", layers, most, errdefs.ErrResourceExhausted)
	}
	for _, id := range c.RootFS.DiffIDs {
		if err := checkDigest(id); err != nil {
			return config{}, fmt.Errorf("image configuration: rootfs.diff_ids: %w", err)
		}
	}
	return c, nil
}

// layersOf returns the number of layers in a configuration.
func layersOf(raw []byte) (int, error) {
	var c config
	if err := json.Unmarshal(raw, &c); err != nil {
		return 0, invalid("image configuration: %v", err)
	}
	return len(c.RootFS.DiffIDs), nil
}

// path returns PATH, or "" if the image sets none that is usable.
func (c config) path() string {
	const most = 4096
	for _, entry := range slices.Backward(c.Config.Env) {
		if value, ok := strings.CutPrefix(entry, "PATH="); ok && len(value) <= most && !strings.ContainsRune(value, 0) {
			return value
		}
	}
	return ""
}

// open finds the image named want in f. want is a parsed name or "".
func open(f files, want string, limits Limits, arch string) (source, error) {
	switch {
	case f.has(manifestFile):
		return openDocker(f, want, limits, arch)
	case f.has(layoutFile):
		return openOCI(f, want, limits, arch)
	}
	if t, ok := f.(*tarFiles); ok {
		whole := func() (io.ReadCloser, int64, error) {
			return io.NopCloser(io.NewSectionReader(t.from, 0, t.size)), t.size, nil
		}
		return source{format: formatRootFS, layers: []layer{{open: whole}}, only: true}, nil
	}
	return source{}, invalid("directory is not an OCI layout: %s not found", layoutFile)
}

type dockerManifest struct {
	Config   string   `json:"Config"`
	RepoTags []string `json:"RepoTags"`
	Layers   []string `json:"Layers"`
}

// maxImages is the maximum number of images in one archive.
const maxImages = 256

func openDocker(f files, want string, limits Limits, arch string) (source, error) {
	raw, err := document(f, manifestFile)
	if err != nil {
		return source{}, err
	}
	chosen, only, err := chooseDocker(raw, want)
	if err != nil {
		return source{}, err
	}
	s := source{format: formatDocker, only: only}
	if len(chosen.RepoTags) > 0 {
		s.name = chosen.RepoTags[0]
	}
	if s.config, err = document(f, chosen.Config); err != nil {
		return source{}, fmt.Errorf("%s: %w", manifestFile, err)
	}
	// docker save names the file by its digest, which reveals damage.
	if hex := path.Base(strings.TrimSuffix(chosen.Config, ".json")); checkDigest("sha256:"+hex) == nil &&
		digest.FromBytes(s.config).Encoded() != hex {
		return source{}, invalid("image configuration does not match its name sha256:%s", hex)
	}
	c, err := readConfig(s.config, len(chosen.Layers), limits.Layers, arch)
	if err != nil {
		return source{}, err
	}
	for i, name := range chosen.Layers {
		if !f.has(path.Clean("/" + name)[1:]) {
			return source{}, invalid("%s lists layer %q, which is not in the archive", manifestFile, clip.Message(name))
		}
		s.layers = append(s.layers, layer{open: func() (io.ReadCloser, int64, error) { return f.open(name) },
			diff: c.RootFS.DiffIDs[i]})
	}
	return s, nil
}

// chooseDocker returns the image with the wanted name, or the only image.
func chooseDocker(raw []byte, want string) (dockerManifest, bool, error) {
	var manifests []dockerManifest
	if err := json.Unmarshal(raw, &manifests); err != nil {
		return dockerManifest{}, false, invalid("%s: %v", manifestFile, err)
	}
	var names []string
	switch {
	case len(manifests) == 1:
		return manifests[0], true, nil
	case len(manifests) > maxImages:
		return dockerManifest{}, false, invalid("%s lists %d images, more than %d", manifestFile, len(manifests),
			maxImages)
	}
	for _, m := range manifests {
		for _, tag := range m.RepoTags {
			if parsed, err := ParseName(tag); err == nil && parsed == want {
				return m, false, nil
			}
			names = append(names, clip.Message(tag))
		}
	}
	return dockerManifest{}, false, ambiguousImage(want, names)
}

func ambiguousImage(want string, names []string) error {
	if len(names) == 0 {
		return invalid("archive has several images without names")
	}
	return invalid("archive has several images (%s), but not %q", clip.Message(strings.Join(names, ", ")), want)
}

var (
	indexTypes    = []string{imagespec.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.list.v2+json"}
	manifestTypes = []string{imagespec.MediaTypeImageManifest, "application/vnd.docker.distribution.manifest.v2+json"}
	configTypes   = []string{imagespec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json"}
	layerTypes    = []string{imagespec.MediaTypeImageLayer, imagespec.MediaTypeImageLayerGzip,
		"application/vnd.docker.image.rootfs.diff.tar", "application/vnd.docker.image.rootfs.diff.tar.gzip"}
)

func openOCI(f files, want string, limits Limits, arch string) (source, error) {
	var layout imagespec.ImageLayout
	if err := decode(f, layoutFile, &layout); err != nil {
		return source{}, err
	}
	if !strings.HasPrefix(layout.Version, "1.") {
		return source{}, fmt.Errorf("OCI layout has version %q, want 1: %w", clip.Message(layout.Version),
			errdefs.ErrNotImplemented)
	}
	var top Index
	if err := decode(f, indexFile, &top); err != nil {
		return source{}, err
	}
	chosen, only, err := chooseOCI(top.Manifests, want)
	if err != nil {
		return source{}, err
	}
	s := source{format: formatOCI, only: only, name: nameOf(chosen)}
	manifest, err := manifestOf(f, chosen, arch)
	if err != nil {
		return source{}, err
	}
	if !slices.Contains(configTypes, manifest.Config.MediaType) {
		return source{}, invalid("configuration has media type %q, which is not a container image",
			clip.Message(manifest.Config.MediaType))
	}
	if s.config, err = blobOf(f, manifest.Config); err != nil {
		return source{}, err
	}
	c, err := readConfig(s.config, manifest.Layers.Count, limits.Layers, arch)
	if err != nil {
		return source{}, err
	}
	for i, d := range manifest.Layers.List {
		if !slices.Contains(layerTypes, d.MediaType) {
			return source{}, fmt.Errorf("layer %d has unsupported media type %q: %w", i, clip.Message(d.MediaType),
				errdefs.ErrNotImplemented)
		}
		if err := checkDigest(d.Digest.String()); err != nil {
			return source{}, fmt.Errorf("layer %d: %w", i, err)
		}
		s.layers = append(s.layers, layer{blob: d.Digest.String(), diff: c.RootFS.DiffIDs[i],
			open: func() (io.ReadCloser, int64, error) { return openBlob(f, d) }})
	}
	return s, nil
}

func decode(f files, name string, into any) error {
	raw, err := document(f, name)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return invalid("%s: %v", name, err)
	}
	return nil
}

// nameOf returns the name that tools write into a layout. It may be only a tag.
func nameOf(d imagespec.Descriptor) string {
	if full := d.Annotations["io.containerd.image.name"]; full != "" {
		return full
	}
	return d.Annotations[imagespec.AnnotationRefName]
}

func chooseOCI(manifests Descriptors, want string) (imagespec.Descriptor, bool, error) {
	if manifests.Count == 1 {
		return manifests.List[0], true, nil
	}
	if manifests.Count > maxImages {
		return imagespec.Descriptor{}, false, invalid("%s lists %d images, more than %d", indexFile, manifests.Count,
			maxImages)
	}
	var names []string
	for _, d := range manifests.List {
		name := nameOf(d)
		if parsed, err := ParseName(name); err == nil && parsed == want ||
			name != "" && strings.HasSuffix(want, ":"+name) {
			return d, false, nil
		}
		if name != "" {
			names = append(names, clip.Message(name))
		}
	}
	return imagespec.Descriptor{}, false, ambiguousImage(want, names)
}

// manifestOf follows an index to the manifest for this host.
func manifestOf(f files, d imagespec.Descriptor, arch string) (Manifest, error) {
	const most = 3 // some layouts nest one index in another
	for range most {
		raw, err := blobOf(f, d)
		if err != nil {
			return Manifest{}, err
		}
		if slices.Contains(manifestTypes, d.MediaType) {
			var m Manifest
			if err := json.Unmarshal(raw, &m); err != nil {
				return m, invalid("image manifest %s: %v", d.Digest, err)
			}
			return m, nil
		}
		if !slices.Contains(indexTypes, d.MediaType) {
			return Manifest{}, invalid("%s has media type %q, want a manifest or an index", d.Digest,
				clip.Message(d.MediaType))
		}
		var x Index
		if err := json.Unmarshal(raw, &x); err != nil {
			return Manifest{}, invalid("image index %s: %v", d.Digest, err)
		}
		i := slices.IndexFunc(x.Manifests.List, func(d imagespec.Descriptor) bool {
			return d.Platform == nil || d.Platform.OS == "linux" && d.Platform.Architecture == arch
		})
		if i < 0 {
			return Manifest{}, invalid("image has no variant for linux/%s", arch)
		}
		d = x.Manifests.List[i]
	}
	return Manifest{}, invalid("image indexes are nested more than %d levels", most)
}

// openBlob opens the blob of a descriptor and checks its size.
func openBlob(f files, d imagespec.Descriptor) (io.ReadCloser, int64, error) {
	if err := checkDigest(d.Digest.String()); err != nil {
		return nil, 0, err
	}
	r, size, err := f.open("blobs/sha256/" + d.Digest.Encoded())
	if err != nil {
		return nil, 0, invalid("blob %s: %v", d.Digest, err)
	}
	if size != d.Size {
		return nil, 0, errors.Join(invalid("blob %s has %d bytes, want %d", d.Digest, size, d.Size),
			r.Close())
	}
	return r, size, nil
}

// blobOf reads a small blob and checks its digest.
func blobOf(f files, d imagespec.Descriptor) ([]byte, error) {
	r, size, err := openBlob(f, d)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > maxDocument {
		return nil, invalid("blob %s has %d bytes, more than %d", d.Digest, size, maxDocument)
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxDocument))
	if err != nil {
		return nil, fmt.Errorf("read blob %s: %w", d.Digest, err)
	}
	if digest.FromBytes(raw) != d.Digest {
		return nil, invalid("blob %s does not match its digest", d.Digest)
	}
	return raw, nil
}
