// Package images keeps root filesystems: it takes in rootfs tars,
// docker-archives and OCI layouts, names them, keeps each as a docker-archive
// for engines that load images, and unpacks each once for the driver that
// needs no engine.
//
// Everything in an archive is foreign. Counts and sizes are bounded, digests
// are checked, no entry and no link leads out of the folder being filled,
// device nodes and FIFOs are left out, setuid and setgid bits and all extended
// attributes (file capabilities are one of them) are dropped. Of the image's
// configuration only PATH means anything later.
//
// The package speaks to no registry (images/pull does, and hands over what came),
// never runs anything and knows nothing of sandboxes: whoever removes an image
// has to know that nothing uses it. It starts no goroutine. Errors are of class NotFound (no such image), InvalidArgument
// (archive or name), NotImplemented (a known format that is not supported),
// ResourceExhausted (over a limit, disk full) or DataLoss (the store's own
// files).
//
// In its folder:
//
//	index.json                    names, images, archives that were seen
//	archives/<hex>/archive.tar    docker-archive; config.json beside it
//	roots/<hex>/fs                unpacked, never written again
//	blobs/<hex>[.part]            layers on their way from a registry
//	tmp/                          what is being made; emptied by Open
package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Defaults of Limits.
const (
	DefaultMaxBytes   = 16 << 30
	DefaultMaxEntries = 1_000_000
	DefaultMaxLayers  = 127 // what Docker's own store takes
)

// Limits bound one image. Zero means the default.
type Limits struct {
	Bytes   int64 // of all layers together, uncompressed
	Entries int   // of all layers together
	Layers  int
}

func (l Limits) withDefaults() Limits {
	if l.Bytes == 0 {
		l.Bytes = DefaultMaxBytes
	}
	if l.Entries == 0 {
		l.Entries = DefaultMaxEntries
	}
	if l.Layers == 0 {
		l.Layers = DefaultMaxLayers
	}
	l.Layers = min(l.Layers, MaxDescriptors)
	return l
}

// Options of a Store.
type Options struct {
	// Dir is the store's folder, for this process alone.
	Dir    string
	Limits Limits
	// Log may be nil.
	Log *slog.Logger
}

// Image is what the store knows of an image.
type Image struct {
	// ID is the digest of the image's configuration.
	ID string `json:"id"`
	// Refs are its names, sorted. An image can be without any.
	Refs []string `json:"refs"`
	// Format is what it came as: "rootfs", "docker-archive", "oci", "registry".
	Format       string    `json:"format"`
	Architecture string    `json:"architecture"`
	SizeBytes    int64     `json:"size_bytes"` // of the layers, uncompressed
	Imported     time.Time `json:"imported"`
	// Path is PATH of the image's configuration, empty if it has none.
	Path string `json:"path,omitempty"`
	// Unpacked says that Root needs to do nothing.
	Unpacked bool `json:"unpacked"`
	// Digests are the manifests it was pulled by, "host/path@sha256:…".
	Digests []string `json:"digests,omitempty"`
	// Pinned images are not collected. Used is when one was last of use.
	Pinned bool      `json:"pinned"`
	Used   time.Time `json:"used"`
}

// Store is a folder of images. Methods may be called concurrently.
type Store struct {
	dir    string
	limits Limits
	log    *slog.Logger
	arch   string
	owners bool // files get their owners; only root can

	importing keyed // one import at a time: bounds disk and CPU
	unpacking keyed // one unpacking or removal per image
	fetching  keyed // one download per blob

	// mu is held while index.json is written, which is small, and while a
	// folder is renamed to go with it.
	mu    sync.Mutex
	index index
	holds map[string]int // who needs a blob or an image, by digest
}

// Open opens the store, makes its folder where needed and clears away what an
// interrupted process has left half made.
func Open(o Options) (*Store, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("image store: %q is not an absolute path: %w", o.Dir, errdefs.ErrInvalidArgument)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{dir: o.Dir, limits: o.Limits.withDefaults(), log: o.Log, arch: goarch, owners: os.Geteuid() == 0, holds: map[string]int{}}
	if err := os.RemoveAll(s.path("tmp")); err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	for _, dir := range []string{"", "tmp", "archives", "roots", "blobs"} {
		if err := os.MkdirAll(s.path(dir), 0o700); err != nil {
			return nil, fmt.Errorf("open image store: %w", err)
		}
	}
	if err := s.load(); err != nil {
		return nil, err
	}
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("open image store: %w", err)
	}
	return s, nil
}

func (s *Store) path(parts ...string) string {
	return filepath.Join(append([]string{s.dir}, parts...)...)
}

func (s *Store) archivePath(id string) string { return s.path("archives", hexOf(id), "archive.tar") }
func (s *Store) rootPath(id string) string    { return s.path("roots", hexOf(id), "fs") }

func hexOf(id string) string { return digest.Digest(id).Encoded() }

// sweep makes index and folders agree: a folder that the index does not name
// was being made or removed, an image whose archive is gone is no image.
func (s *Store) sweep() error {
	for _, id := range s.index.ids() {
		if _, err := os.Stat(s.archivePath(id)); err != nil {
			s.log.Warn("image has lost its archive and is forgotten", "image", id, "error", err)
			if err := s.update(func(x *index) { x.drop(id) }); err != nil {
				return err
			}
		}
	}
	for _, kind := range []string{"archives", "roots"} {
		entries, err := os.ReadDir(s.path(kind))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if _, known := s.index.Images["sha256:"+e.Name()]; known {
				continue
			}
			if err := os.RemoveAll(s.path(kind, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Scratch makes a folder on the store's disk that remove takes away again, or
// else the next Open.
func (s *Store) Scratch() (dir string, remove func(), err error) { return s.stage() }

// stage makes a folder that goes away with undo, whatever became of it.
func (s *Store) stage() (dir string, undo func(), err error) {
	dir, err = os.MkdirTemp(s.path("tmp"), "")
	if err != nil {
		return "", nil, diskError(fmt.Errorf("image store: %w", err))
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			s.log.Warn("a temporary folder of the image store is left", "dir", dir, "error", err)
		}
	}, nil
}

// Resolve finds an image by name ("debian:12", a missing tag is latest), by id
// ("sha256:…", also after a name and @) or by the first 12 or more hex digits
// of its id. Root is filled in if it is unpacked already.
func (s *Store) Resolve(ref string) (runtime.Image, error) {
	s.mu.Lock()
	id, name, err := s.index.find(ref)
	s.mu.Unlock()
	if err != nil {
		return runtime.Image{}, err
	}
	image := runtime.Image{Ref: name, ID: id, Archive: s.archivePath(id)}
	if s.unpacked(id) {
		image.Root = s.rootPath(id)
	}
	return image, nil
}

func (s *Store) unpacked(id string) bool {
	info, err := os.Lstat(s.rootPath(id))
	return err == nil && info.IsDir()
}

// Get tells of one image, found as Resolve does.
func (s *Store) Get(ref string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _, err := s.index.find(ref)
	if err != nil {
		return Image{}, err
	}
	return s.view(id), nil
}

// List tells of all images, those with names first, sorted.
func (s *Store) List() []Image {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Image, 0, len(s.index.Images))
	for _, id := range s.index.ids() {
		out = append(out, s.view(id))
	}
	return out
}

func (s *Store) view(id string) Image {
	r := s.index.Images[id]
	return Image{ID: id, Refs: s.index.refsOf(id), Format: r.Format, Architecture: r.Architecture, SizeBytes: r.Size,
		Imported: r.Imported, Path: r.Path, Unpacked: s.unpacked(id), Digests: slices.Clone(r.Digests), Pinned: r.Pinned, Used: s.used(id)}
}

// Tag gives an image one more name.
func (s *Store) Tag(ref, name string) error {
	parsed, err := ParseName(name)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _, err := s.index.find(ref)
	if err != nil {
		return err
	}
	return s.update(func(x *index) { x.Refs[parsed] = id })
}

// Remove takes a name away, and the image with its last name; by id it takes
// the image with all its names. Nothing may be running from the image.
func (s *Store) Remove(ctx context.Context, ref string) error {
	s.mu.Lock()
	id, name, err := s.index.find(ref)
	if err != nil {
		s.mu.Unlock()
		return err
	}
	if parsed, err := ParseName(ref); err == nil && parsed == name && len(s.index.refsOf(id)) > 1 {
		defer s.mu.Unlock()
		return s.update(func(x *index) { delete(x.Refs, name) })
	}
	s.mu.Unlock()
	return s.discard(ctx, id, nil)
}

// discard forgets an image first and moves it away then: what a crash leaves
// in between is swept by Open. The deleting itself comes after the lock. may,
// unless nil, has the last word, with the lock held.
func (s *Store) discard(ctx context.Context, id string, may func() error) error {
	unlock, err := s.unpacking.lock(ctx, id)
	if err != nil {
		return fmt.Errorf("remove image %s: %w", id, err)
	}
	defer unlock()
	dir, undo, err := s.stage()
	if err != nil {
		return err
	}
	defer undo()
	s.mu.Lock()
	defer s.mu.Unlock()
	if may != nil {
		if err := may(); err != nil {
			return err
		}
	}
	if err := s.update(func(x *index) { x.drop(id) }); err != nil {
		return err
	}
	for _, kind := range []string{"archives", "roots"} {
		err := os.Rename(s.path(kind, hexOf(id)), filepath.Join(dir, kind))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove image %s: %w", id, err)
		}
	}
	return nil
}

// keyed is a set of locks by name whose waiters heed their context.
type keyed struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

func (k *keyed) lock(ctx context.Context, key string) (unlock func(), err error) {
	for {
		k.mu.Lock()
		busy, held := k.held[key]
		if !held {
			if k.held == nil {
				k.held = map[string]chan struct{}{}
			}
			free := make(chan struct{})
			k.held[key] = free
			k.mu.Unlock()
			return func() {
				k.mu.Lock()
				delete(k.held, key)
				k.mu.Unlock()
				close(free)
			}, nil
		}
		k.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// diskError gives a full disk its class.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w (%w)", err, errdefs.ErrResourceExhausted)
	}
	return err
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

func isID(ref string) bool { return strings.HasPrefix(ref, "sha256:") }
