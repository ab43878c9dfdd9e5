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

// Pulled is an image that came from a registry: its configuration, which is
// checked already, and its layers, bottom first.
type Pulled struct {
	Config []byte
	Layers []PulledLayer
	// Name is what it is kept under, "" for none. Digests are what it was pulled
	// by: see Image.
	Name    string
	Digests []string
}

// PulledLayer is a layer whose blob lies in the store, or whose content another
// image has.
type PulledLayer struct {
	Blob string // digest of the blob
	Diff string // digest of its content
}

// Plan checks an image's configuration against this host and a number of
// layers, and returns the id it will have and the digests of its layers'
// contents.
func (s *Store) Plan(config []byte, layers int) (id string, diffs []string, err error) {
	c, err := readConfig(config, layers, s.limits.Layers, s.arch)
	if err != nil {
		return "", nil, err
	}
	return digest.FromBytes(config).String(), c.RootFS.DiffIDs, nil
}

// Limits are those of this store.
func (s *Store) Limits() Limits { return s.limits }

// Architecture is that of this host, as configurations name it.
func (s *Store) Architecture() string { return s.arch }

// Lent are layers of images that are here already. They can be read until
// Close, also when their images are removed meanwhile.
type Lent struct {
	files  []*os.File
	layers map[string]layer // by diff
}

// Has says whether the layer with this content is there.
func (l *Lent) Has(diff string) bool { _, ok := l.layers[diff]; return ok }

// Close gives the layers back.
func (l *Lent) Close() error {
	var errs []error
	for _, f := range l.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Lend finds layers that images in the store have, by the digest of their
// content. An image that cannot be read lends nothing.
func (s *Store) Lend(ctx context.Context, diffs []string) (*Lent, error) {
	lent := &Lent{layers: map[string]layer{}}
	s.mu.Lock()
	ids := s.index.ids()
	s.mu.Unlock()
	for _, id := range ids {
		if err := context.Cause(ctx); err != nil {
			return nil, errors.Join(err, lent.Close())
		}
		if !s.shares(id, diffs) {
			continue
		}
		f, from, err := readArchive(ctx, s.archivePath(id), id, s.limits, s.arch)
		if err != nil {
			s.log.Warn("an image's layers cannot be used for another one", "image", id, "error", err)
			continue
		}
		lent.files = append(lent.files, f)
		for _, l := range from.layers {
			if slices.Contains(diffs, l.diff) {
				lent.layers[l.diff] = layer{open: l.open, diff: l.diff}
			}
		}
	}
	return lent, nil
}

// shares says whether an image has one of the layers, by its configuration.
func (s *Store) shares(id string, diffs []string) bool {
	raw, err := os.ReadFile(filepath.Join(filepath.Dir(s.archivePath(id)), "config.json"))
	if err != nil {
		return false
	}
	_, have, err := s.planOf(raw)
	return err == nil && slices.ContainsFunc(have, func(diff string) bool { return slices.Contains(diffs, diff) })
}

// planOf is Plan for a configuration that was checked when it came.
func (s *Store) planOf(raw []byte) (string, []string, error) {
	n, err := layersOf(raw)
	if err != nil {
		return "", nil, err
	}
	return s.Plan(raw, n)
}

// Adopt takes in an image whose blobs were fetched; every digest is checked
// once more. An image that is here already gets the name and the digests.
func (s *Store) Adopt(ctx context.Context, p Pulled, lent *Lent) (Image, error) {
	id, _, err := s.Plan(p.Config, len(p.Layers))
	if err != nil {
		return Image{}, err
	}
	if image, err := s.Recognise(id, p.Name, p.Digests); err == nil || !errdefs.IsNotFound(err) {
		return image, err
	}
	unlock, err := s.importing.lock(ctx, "")
	if err != nil {
		return Image{}, fmt.Errorf("wait for another import: %w", err)
	}
	defer unlock()
	stage, undo, err := s.stage()
	if err != nil {
		return Image{}, err
	}
	defer undo()
	from := source{format: formatRegistry, config: p.Config}
	for _, l := range p.Layers {
		if own, ok := lent.layers[l.Diff]; ok {
			from.layers = append(from.layers, own)
			continue
		}
		from.layers = append(from.layers, layer{blob: l.Blob, diff: l.Diff, open: func() (io.ReadCloser, int64, error) { return s.openBlob(l.Blob) }})
	}
	id, entry, err := s.build(ctx, stage, from)
	if err != nil {
		return Image{}, err
	}
	return s.keep(id, entry, stage, p.Name, func(x *index) { x.addDigests(id, p.Digests) })
}

// Recognise gives an image that is here a name, unless it is "", and the
// digests it was pulled by.
func (s *Store) Recognise(id, name string, digests []string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.index.Images[id]; !known {
		return Image{}, fmt.Errorf("image %s is not here: %w", id, errdefs.ErrNotFound)
	}
	s.Touch(id) // it is not collected before the caller uses it
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

// maxDigests bounds what is remembered of one image; the oldest go first.
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

// Pin keeps an image from being collected, or lets it be again.
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
