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
)

// plan is what a reference turned out to name.
type plan struct {
	from    ref.Reference // by digest, of the manifest for this host
	digest  string        // what the reference names: an index, or that manifest
	digests []string      // both, as images.Image.Digests
	name    string        // what the image is kept under, "" for none
	id      string
	config  []byte
	layers  []images.PulledLayer
	sizes   map[string]int64 // of blobs, by digest
}

const (
	maxIndex = images.MaxDescriptors
	maxNest  = 2 // indexes in one another
)

var (
	indexTypes    = []string{imagespec.MediaTypeImageIndex, "application/vnd.docker.distribution.manifest.list.v2+json"}
	manifestTypes = []string{imagespec.MediaTypeImageManifest, "application/vnd.docker.distribution.manifest.v2+json"}
	configTypes   = []string{imagespec.MediaTypeImageConfig, "application/vnd.docker.container.image.v1+json"}
	layerTypes    = []string{imagespec.MediaTypeImageLayer, imagespec.MediaTypeImageLayerGzip,
		"application/vnd.docker.image.rootfs.diff.tar", "application/vnd.docker.image.rootfs.diff.tar.gzip"}
)

// resolve finds out what a reference names, and whether that may be had. It
// fetches manifests, signatures and the configuration, no layer.
func (p *Puller) resolve(ctx context.Context, r ref.Reference) (plan, error) {
	top, err := p.o.Registry.Manifest(ctx, r)
	if err != nil {
		return plan{}, err
	}
	if r.Digest == "" && p.o.RequireDigest {
		return plan{}, fmt.Errorf("image %s: images.require_digest is set: ask for %s, which the tag names now: %w", r, r.Pinned(top.Digest), errdefs.ErrFailedPrecondition)
	}
	own, err := p.variant(ctx, r, top)
	if err != nil {
		return plan{}, fmt.Errorf("image %s: %w", r, err)
	}
	if err := p.signed(ctx, r, top.Digest, own.Digest); err != nil {
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

// kindOf is a manifest's media type. Where the document and the header both
// tell, they have to agree: what one reader takes for an index must not be a
// manifest for another.
func kindOf(m registry.Manifest) (string, error) {
	var said struct {
		SchemaVersion int    `json:"schemaVersion"`
		MediaType     string `json:"mediaType"`
	}
	if err := json.Unmarshal(m.Raw, &said); err != nil {
		return "", bad("manifest %s is no JSON", m.Digest)
	}
	known := slices.Contains(indexTypes, m.MediaType) || slices.Contains(manifestTypes, m.MediaType)
	switch {
	case said.SchemaVersion != 2:
		return "", bad("manifest %s has schema version %d, only 2 is supported", m.Digest, said.SchemaVersion)
	case said.MediaType == "" && known:
		return m.MediaType, nil
	case said.MediaType == "":
		return "", bad("manifest %s does not say what it is", m.Digest)
	case known && m.MediaType != said.MediaType:
		return "", bad("manifest %s says that it is %q, and the registry that it is %q", m.Digest, clip(said.MediaType), m.MediaType)
	}
	return said.MediaType, nil
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
			return m, bad("%s is %q: neither a manifest nor an index", m.Digest, clip(kind))
		}
		var x images.Index
		if err := json.Unmarshal(m.Raw, &x); err != nil {
			return m, bad("index %s cannot be read", m.Digest)
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
	return m, bad("indexes are nested more than %d deep", maxNest)
}

// choose picks the entry for this host; one without a variant of the processor
// comes before one with.
func choose(entries []imagespec.Descriptor, arch string) (imagespec.Descriptor, error) {
	var has []string
	best := -1
	for i, d := range entries {
		if d.Platform == nil {
			if len(entries) > 1 {
				continue
			}
			d.Platform = &imagespec.Platform{OS: "linux", Architecture: arch} // the configuration tells
		}
		if d.Platform.OS != "linux" || d.Platform.Architecture != arch {
			if d.Platform.OS != "unknown" { // what an attestation says that it is for
				has = append(has, clip(d.Platform.OS+"/"+d.Platform.Architecture))
			}
			continue
		}
		if best < 0 || d.Platform.Variant == "" && entries[best].Platform != nil && entries[best].Platform.Variant != "" {
			best = i
		}
	}
	if best >= 0 {
		d := entries[best]
		if err := d.Digest.Validate(); err != nil || d.Digest.Algorithm() != "sha256" {
			return d, bad("an index names the digest %q", clip(d.Digest.String()))
		}
		return d, nil
	}
	if len(has) == 0 {
		return imagespec.Descriptor{}, bad("it has no variant for linux/%s", arch)
	}
	slices.Sort(has)
	return imagespec.Descriptor{}, bad("it has no variant for linux/%s, only for %s", arch, clip(strings.Join(slices.Compact(has), ", ")))
}

// read takes configuration and layers out of a manifest. Every number in it is
// checked before anything is fetched.
func (p *Puller) read(ctx context.Context, m registry.Manifest, out *plan) error {
	var manifest images.Manifest
	if err := json.Unmarshal(m.Raw, &manifest); err != nil {
		return bad("manifest %s cannot be read", m.Digest)
	}
	if !slices.Contains(configTypes, manifest.Config.MediaType) {
		return bad("its configuration is %q: it is not a container image", clip(manifest.Config.MediaType))
	}
	limits := p.o.Store.Limits()
	if n := manifest.Layers.Count; n > limits.Layers {
		return fmt.Errorf("it has %d layers, more than %d: %w", n, limits.Layers, errdefs.ErrResourceExhausted)
	}
	left := limits.Bytes
	for i, d := range append(slices.Clone(manifest.Layers.List), manifest.Config) {
		switch {
		case d.Digest.Validate() != nil || d.Digest.Algorithm() != "sha256":
			return bad("its manifest names the digest %q", clip(d.Digest.String()))
		case d.Size < 0:
			return bad("its manifest says that blob %s has %d bytes", d.Digest, d.Size)
		case d.Size > left:
			return fmt.Errorf("its layers have more than %d bytes: %w", limits.Bytes, errdefs.ErrResourceExhausted)
		case i < manifest.Layers.Count && !slices.Contains(layerTypes, d.MediaType):
			return fmt.Errorf("layer %d is %q, which is not supported: %w", i, clip(d.MediaType), errdefs.ErrNotImplemented)
		}
		if size, twice := out.sizes[d.Digest.String()]; twice && size != d.Size {
			return bad("its manifest tells two sizes of blob %s", d.Digest)
		} else if !twice {
			left -= d.Size
		}
		out.sizes[d.Digest.String()] = d.Size
	}
	var err error
	if out.config, err = p.o.Registry.Document(ctx, out.from, manifest.Config.Digest.String(), manifest.Config.Size); err != nil {
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

// signed checks that one of the keys signed what the reference names, or the
// manifest for this host.
func (p *Puller) signed(ctx context.Context, r ref.Reference, digests ...string) error {
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
	return signature.None(r, digests[0], whys)
}

// verify looks through the signatures of one manifest for a good one, and
// tells what is wrong with the others.
func (p *Puller) verify(ctx context.Context, r, at ref.Reference, m registry.Manifest, digest string) (key string, whys []error, err error) {
	var manifest images.Manifest
	if err := json.Unmarshal(m.Raw, &manifest); err != nil {
		return "", []error{fmt.Errorf("manifest %s cannot be read: %w", m.Digest, errdefs.ErrPermissionDenied)}, nil
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

func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
