package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
)

// Pulled is an image downloaded from a registry: its checked configuration and its layers, bottom
// first.
type Pulled struct {
	Config []byte
	Layers []PulledLayer
	// Name is its name in the store, or "". Digests are as in Image.
	Name    string
	Digests []string
}

// PulledLayer is a layer with a blob in the store, or with the content of another image's layer.
type PulledLayer struct {
	Blob string // digest of the blob
	Diff string // digest of the uncompressed content
}

// Plan checks an image configuration against this host and the number of layers. It returns the id
// of the image and the digests of the uncompressed layers.
func (s *Store) Plan(config []byte, layers int) (id string, diffs []string, err error) {
	c, err := readConfig(config, layers, s.limits.Layers, s.arch)
	if err != nil {
		return "", nil, err
	}
	return digest.FromBytes(config).String(), c.RootFS.DiffIDs, nil
}

// Limits returns the limits of the store, with defaults applied.
func (s *Store) Limits() Limits { return s.limits }

// Architecture returns the architecture of this host, as in image configurations.
func (s *Store) Architecture() string { return s.arch }

// SharedLayers are layers of stored images. They can be read until Close, even if their images are
// removed.
type SharedLayers struct {
	files  []*os.File
	layers map[string]layer // by diff
}

// Has reports whether it contains the layer with this content digest.
func (l *SharedLayers) Has(diff string) bool { _, ok := l.layers[diff]; return ok }

// Close closes the files.
func (l *SharedLayers) Close() error {
	errs := make([]error, 0, len(l.files))
	for _, f := range l.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// FindLayers returns the layers of stored images with the given content digests. It skips images
// that cannot be read.
func (s *Store) FindLayers(ctx context.Context, diffs []string) (*SharedLayers, error) {
	shared := &SharedLayers{layers: map[string]layer{}}
	s.mu.Lock()
	ids := s.index.ids()
	s.mu.Unlock()
	for _, id := range ids {
		if err := context.Cause(ctx); err != nil {
			return nil, errors.Join(err, shared.Close())
		}
		if !s.shares(id, diffs) {
			continue
		}
		f, from, err := readArchive(ctx, s.archivePath(id), id, s.limits, s.arch)
		if err != nil {
			s.log.Warn("failed to read image for its layers", "image", id, "error", err)
			continue
		}
		shared.files = append(shared.files, f)
		for _, l := range from.layers {
			if slices.Contains(diffs, l.diff) {
				shared.layers[l.diff] = layer{open: l.open, diff: l.diff}
			}
		}
	}
	return shared, nil
}

// shares reports whether the configuration of an image lists one of the layers.
func (s *Store) shares(id string, diffs []string) bool {
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(s.archivePath(id)), "config.json"))
	if err != nil {
		return false
	}
	_, have, err := s.planOf(raw)
	return err == nil && slices.ContainsFunc(have, func(diff string) bool { return slices.Contains(diffs, diff) })
}

// planOf is Plan for a configuration that was checked before.
func (s *Store) planOf(raw []byte) (string, []string, error) {
	n, err := layersOf(raw)
	if err != nil {
		return "", nil, err
	}
	return s.Plan(raw, n)
}

// AddPulled adds an image whose blobs were downloaded, after checking every digest again. An image
// that is already stored gets the name and the digests.
func (s *Store) AddPulled(ctx context.Context, p Pulled, shared *SharedLayers) (Image, error) {
	id, _, err := s.Plan(p.Config, len(p.Layers))
	if err != nil {
		return Image{}, err
	}
	if image, err := s.AddReference(id, p.Name, p.Digests); err == nil || !errdefs.IsNotFound(err) {
		return image, err
	}
	stage, end, err := s.beginImport(ctx)
	if err != nil {
		return Image{}, err
	}
	defer end()
	from := source{format: formatRegistry, config: p.Config}
	for _, l := range p.Layers {
		if own, ok := shared.layers[l.Diff]; ok {
			from.layers = append(from.layers, own)
			continue
		}
		from.layers = append(from.layers,
			layer{blob: l.Blob, diff: l.Diff, open: func() (io.ReadCloser, int64, error) { return s.openBlob(l.Blob) }})
	}
	id, entry, err := s.build(ctx, stage, from)
	if err != nil {
		return Image{}, err
	}
	return s.keep(id, entry, stage, p.Name, func(x *index) { x.addDigests(id, p.Digests) })
}

// AddReference adds a name, unless it is "", and pull digests to a stored image. The error is
// NotFound if there is no such image.
func (s *Store) AddReference(id, name string, digests []string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.index.Images[id]; !known {
		return Image{}, fmt.Errorf("image %s not found: %w", id, errdefs.ErrNotFound)
	}
	s.Touch(id) // so that it is not collected before the caller uses it
	before := s.index.Images[id].Digests
	missing := slices.ContainsFunc(digests, func(d string) bool { return !slices.Contains(before, d) })
	if missing || name != "" && s.index.Refs[name] != id {
		err := s.update(func(x *index) {
			x.addDigests(id, digests)
			if name != "" {
				x.Refs[name] = id
			}
		})
		if err != nil {
			return Image{}, err
		}
	}
	return s.view(id), nil
}

// maxDigests is the maximum number of pull digests per image; the oldest are dropped.
const maxDigests = 64

func (x *index) addDigests(id string, digests []string) {
	r := x.Images[id]
	r.Digests = slices.Clone(r.Digests)
	for _, d := range digests {
		if !slices.Contains(r.Digests, d) {
			r.Digests = append(r.Digests, d)
		}
	}
	if extra := len(r.Digests) - maxDigests; extra > 0 {
		r.Digests = r.Digests[extra:]
	}
	x.Images[id] = r
}

// Pin sets whether an image is protected from collection.
func (s *Store) Pin(want string, pinned bool) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _, err := s.index.find(want)
	if err != nil {
		return Image{}, err
	}
	if s.index.Images[id].Pinned != pinned {
		err = s.update(func(x *index) {
			r := x.Images[id]
			r.Pinned = pinned
			x.Images[id] = r
		})
	}
	return s.view(id), err
}
