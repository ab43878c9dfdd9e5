package pull

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/sandbox-orchestrator/orchestrator/images"
	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/images/registry"
	"github.com/sandbox-orchestrator/orchestrator/images/signature"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// plan is the result of resolving a reference.
type plan struct {
	from    ref.Reference // digest reference of the manifest for this host
	digest  string        // digest that the reference names: of an index, or of that manifest
	digests []string      // both digests, as in images.Image
	name    string        // name in the store, or ""
	id      string
	config  []byte
	layers  []images.PulledLayer
	sizes   map[string]int64 // sizes of blobs in bytes, by digest
}

const (
	maxIndex = images.MaxDescriptors
	maxNest  = 2 // levels of nested indexes
)

var (
	indexTypes    = []string{imagespec.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.list.v2+json"}
	manifestTypes = []string{imagespec.MediaTypeImageManifest, "application/vnd.docker.distribution.manifest.v2+json"}
	configTypes   = []string{imagespec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json"}
	layerTypes    = []string{imagespec.MediaTypeImageLayer, imagespec.MediaTypeImageLayerGzip,
		"application/vnd.docker.image.rootfs.diff.tar", "application/vnd.docker.image.rootfs.diff.tar.gzip"}
)

// resolve determines what a reference names and checks that it may be pulled. It downloads
// manifests, signatures and the configuration, but no layer.
func (p *Puller) resolve(ctx context.Context, r ref.Reference) (plan, error) {
	top, err := p.o.Registry.Manifest(ctx, r)
	if err != nil {
		return plan{}, err
	}
	if r.Digest == "" && p.o.RequireDigest {
		return plan{}, fmt.Errorf("image %s: images.require_digest is set: use %s, the current digest of the tag: %w",
			r, r.Pinned(top.Digest), errdefs.ErrFailedPrecondition)
	}
	own, err := p.variant(ctx, r, top)
	if err != nil {
		return plan{}, fmt.Errorf("image %s: %w", r, err)
	}
	if err := p.checkSigned(ctx, r, top.Digest, own.Digest); err != nil {
		return plan{}, err
	}
	out := plan{digest: top.Digest, digests: []string{r.Pinned(top.Digest)}, from: r, sizes: map[string]int64{}}
	out.from.Tag, out.from.Digest = "", own.Digest
	if own.Digest != top.Digest {
		out.digests = append(out.digests, r.Pinned(own.Digest))
	}
	if r.Digest == "" {
		if out.name, err = images.ParseName(r.Familiar()); err != nil {
			return plan{}, err
		}
	}
	if err := p.read(ctx, own, &out); err != nil {
		return plan{}, fmt.Errorf("image %s: %w", r, err)
	}
	return out, nil
}

// kindOf returns the media type of a manifest. The document and the header must agree if both have
// one: the same bytes must not be an index for one reader and a manifest for another.
func kindOf(m registry.Manifest) (string, error) {
	var declared struct {
		SchemaVersion int    `json:"schemaVersion"`
		MediaType     string `json:"mediaType"`
	}
	if err := json.Unmarshal(m.Raw, &declared); err != nil {
		return "", bad("manifest %s is not valid JSON", m.Digest)
	}
	known := slices.Contains(indexTypes, m.MediaType) || slices.Contains(manifestTypes, m.MediaType)
	switch {
	case declared.SchemaVersion != 2:
		return "", bad("manifest %s has schema version %d, want 2", m.Digest, declared.SchemaVersion)
	case declared.MediaType == "" && known:
		return m.MediaType, nil
	case declared.MediaType == "":
		return "", bad("manifest %s has no media type", m.Digest)
	case known && m.MediaType != declared.MediaType:
		return "", bad("manifest %s has media type %q, but the registry sent %q", m.Digest, clip.Message(declared.MediaType),
			m.MediaType)
	}
	return declared.MediaType, nil
}

// variant follows an index to the manifest for this host.
func (p *Puller) variant(ctx context.Context, r ref.Reference, m registry.Manifest) (registry.Manifest, error) {
	for range maxNest + 1 {
		kind, err := kindOf(m)
		switch {
		case err != nil:
			return m, err
		case slices.Contains(manifestTypes, kind):
			return m, nil
		case !slices.Contains(indexTypes, kind):
			return m, bad("%s has media type %q, want a manifest or an index", m.Digest, clip.Message(kind))
		}
		var x images.Index
		if err := json.Unmarshal(m.Raw, &x); err != nil {
			return m, bad("index %s is invalid", m.Digest)
		}
		if x.Manifests.Count > maxIndex {
			return m, bad("index %s has %d entries, more than %d", m.Digest, x.Manifests.Count, maxIndex)
		}
		d, err := choose(x.Manifests.List, p.o.Store.Architecture())
		if err != nil {
			return m, err
		}
		next := r
		next.Tag, next.Digest = "", d.Digest.String()
		if m, err = p.o.Registry.Manifest(ctx, next); err != nil {
			return m, err
		}
	}
	return m, bad("indexes are nested more than %d levels", maxNest)
}

// choose returns the entry for this host. It prefers an entry without a CPU variant.
func choose(entries []imagespec.Descriptor, arch string) (imagespec.Descriptor, error) {
	var has []string
	best := -1
	for i, d := range entries {
		if d.Platform == nil {
			if len(entries) > 1 {
				continue
			}
			d.Platform = &imagespec.Platform{OS: "linux", Architecture: arch} // checked against the configuration later
		}
		if d.Platform.OS != "linux" || d.Platform.Architecture != arch {
			if d.Platform.OS != "unknown" { // the platform of attestations
				has = append(has, clip.Message(d.Platform.OS+"/"+d.Platform.Architecture))
			}
			continue
		}
		if best < 0 || d.Platform.Variant == "" && entries[best].Platform != nil &&
			entries[best].Platform.Variant != "" {
			best = i
		}
	}
	if best >= 0 {
		d := entries[best]
		if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != "sha256" {
			return d, bad("an index has invalid digest %q", clip.Message(d.Digest.String()))
		}
		return d, nil
	}
	if len(has) == 0 {
		return imagespec.Descriptor{}, bad("no variant for linux/%s", arch)
	}
	slices.Sort(has)
	return imagespec.Descriptor{}, bad("no variant for linux/%s, only for %s",
		arch, clip.Message(strings.Join(slices.Compact(has), ", ")))
}

// read gets the configuration and the layers of a manifest. It checks every size before it
// downloads anything.
func (p *Puller) read(ctx context.Context, m registry.Manifest, out *plan) error {
	var manifest images.Manifest
	if err := json.Unmarshal(m.Raw, &manifest); err != nil {
		return bad("manifest %s is invalid", m.Digest)
	}
	if !slices.Contains(configTypes, manifest.Config.MediaType) {
		return bad("configuration has media type %q, which is not a container image", clip.Message(manifest.Config.MediaType))
	}
	limits := p.o.Store.Limits()
	if n := manifest.Layers.Count; n > limits.Layers {
		return fmt.Errorf("image has %d layers, more than %d: %w", n, limits.Layers, errdefs.ErrResourceExhausted)
	}
	left := limits.Bytes
	for i, d := range append(slices.Clone(manifest.Layers.List), manifest.Config) {
		switch {
		case d.Digest.Validate() != nil || d.Digest.Algorithm() != "sha256":
			return bad("manifest has invalid digest %q", clip.Message(d.Digest.String()))
		case d.Size < 0:
			return bad("manifest has invalid size of blob %s: %d", d.Digest, d.Size)
		case d.Size > left:
			return fmt.Errorf("layers are larger than %d bytes: %w", limits.Bytes, errdefs.ErrResourceExhausted)
		case i < manifest.Layers.Count && !slices.Contains(layerTypes, d.MediaType):
			return fmt.Errorf("layer %d has unsupported media type %q: %w", i, clip.Message(d.MediaType),
				errdefs.ErrNotImplemented)
		}
		if size, twice := out.sizes[d.Digest.String()]; twice && size != d.Size {
			return bad("manifest has two sizes for blob %s", d.Digest)
		} else if !twice {
			left -= d.Size
		}
		out.sizes[d.Digest.String()] = d.Size
	}
	var err error
	if out.config, err = p.o.Registry.Document(ctx, out.from, manifest.Config.Digest.String(),
		manifest.Config.Size); err != nil {
		return err
	}
	var diffs []string
	if out.id, diffs, err = p.o.Store.Plan(out.config, manifest.Layers.Count); err != nil {
		return err
	}
	for i, d := range manifest.Layers.List {
		out.layers = append(out.layers, images.PulledLayer{Blob: d.Digest.String(), Diff: diffs[i]})
	}
	return nil
}

// checkSigned checks that one of the keys signed what the reference names, or the manifest for this
// host.
func (p *Puller) checkSigned(ctx context.Context, r ref.Reference, digests ...string) error {
	if len(p.o.Keys) == 0 || !p.o.Signed.Has(ref.Reference{Registry: r.Registry, Repository: r.Repository}) {
		return nil
	}
	var whys []error
	for _, digest := range slices.Compact(digests) {
		at := ref.Reference{Registry: r.Registry, Repository: r.Repository, Tag: signature.Tag(digest)}
		m, err := p.o.Registry.Manifest(ctx, at)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("signature of %s: %w", r.Pinned(digest), err)
		}
		key, more, err := p.verify(ctx, r, at, m, digest)
		if err != nil {
			return fmt.Errorf("signature of %s: %w", r.Pinned(digest), err)
		}
		if key != "" {
			p.o.Log.Info("image is signed", "ref", r.String(), "digest", digest, "key", key)
			return nil
		}
		whys = append(whys, more...)
	}
	return signature.Missing(r, digests[0], whys)
}

// verify returns the name of the key of the first valid signature of one manifest, or the reasons
// why its signatures are invalid.
func (p *Puller) verify(ctx context.Context, r, at ref.Reference, m registry.Manifest, digest string) (key string,
	whys []error, err error) {
	var manifest images.Manifest
	if err := json.Unmarshal(m.Raw, &manifest); err != nil {
		why := fmt.Errorf("manifest %s is invalid: %w", m.Digest, errdefs.ErrPermissionDenied)
		return "", []error{why}, nil //nolint:nilerr // the reason is in whys
	}
	for i, l := range manifest.Layers.List {
		sig := l.Annotations[signature.Annotation]
		if i >= signature.Max {
			break
		}
		if l.MediaType != signature.MediaType || sig == "" || l.Size > signature.MaxPayload {
			continue
		}
		payload, err := p.o.Registry.Document(ctx, at, l.Digest.String(), l.Size)
		if err != nil {
			return "", nil, err
		}
		k, err := signature.Verify(p.o.Keys, payload, sig, r, digest)
		if err == nil {
			return k.Name, nil, nil
		}
		whys = append(whys, err)
	}
	return "", whys, nil
}

func bad(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}
