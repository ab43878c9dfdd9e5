// Package images stores root filesystems. It imports rootfs tars, docker-archives and OCI layouts,
// names them, keeps each as a docker-archive for engines that load images, and unpacks each once
// for the driver that needs no engine.
//
// Archives are untrusted. Counts and sizes are bounded and digests checked. No entry or link can
// leave the directory that is filled. Device nodes and FIFOs are skipped. Setuid and setgid bits
// and extended attributes, which include file capabilities, are dropped. Of the image
// configuration, only PATH has an effect later.
//
// The package runs nothing, starts no goroutine and contacts no registry; images/pull downloads
// images and hands them over. It does not know which images are in use: callers must check before
// they remove one. Error classes are NotFound (image), InvalidArgument (archive or name),
// NotImplemented (a known but unsupported format), ResourceExhausted (over a limit, disk full) and
// DataLoss (files of the store).
//
// Layout of the store directory:
//
//	index.json                    names, images, digests of imported archives
//	archives/<hex>/archive.tar    docker-archive; config.json next to it
//	roots/<hex>/fs                unpacked, never written again
//	blobs/<hex>[.part]            downloaded layers
//	tmp/                          temporary files; emptied by Open
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

	"github.com/sandbox-orchestrator/orchestrator/internal/namedlock"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Default values of Limits.
const (
	DefaultMaxBytes   = 16 << 30
	DefaultMaxEntries = 1_000_000
	DefaultMaxLayers  = 127 // the limit of Docker's store
)

// Limits bounds one image. Zero means the default.
type Limits struct {
	Bytes   int64 // total size of the layers, uncompressed
	Entries int   // total entries of the layers
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

// Options configures a Store.
type Options struct {
	// Dir is the directory of the store. No other process may use it.
	Dir    string
	Limits Limits
	// Log receives events; nil discards them.
	Log *slog.Logger
}

// Image describes an image in the store.
type Image struct {
	// ID is the digest of the image's configuration.
	ID string `json:"id"`
	// Refs are its names, sorted. It may be empty.
	Refs []string `json:"refs"`
	// Format is the source format: "rootfs", "docker-archive", "oci" or "registry".
	Format       string    `json:"format"`
	Architecture string    `json:"architecture"`
	SizeBytes    int64     `json:"size_bytes"` // of the uncompressed layers
	Imported     time.Time `json:"imported"`
	// Path is PATH of the image configuration, or empty.
	Path string `json:"path,omitempty"`
	// Unpacked reports that the root filesystem is unpacked, so that Root returns at once.
	Unpacked bool `json:"unpacked"`
	// Digests are the manifest digests it was pulled by, as "host/path@sha256:…".
	Digests []string `json:"digests,omitempty"`
	// Pinned images are never collected. Used is the time of the last use.
	Pinned bool      `json:"pinned"`
	Used   time.Time `json:"used"`
}

// Store is a directory of images. It is safe for concurrent use.
type Store struct {
	dir    string
	limits Limits
	log    *slog.Logger
	arch   string
	owners bool // set the owners of unpacked files; requires root

	importing namedlock.Locks // one import at a time, to bound disk and CPU use
	unpacking namedlock.Locks // one unpack or removal per image
	fetching  namedlock.Locks // one download per blob

	// mu is held while index.json is written and while a directory is renamed along with it.
	mu    sync.Mutex
	index index
	holds map[string]int // number of users of a blob or an image, by digest
}

// Open opens the store, creates its directory if needed, and removes what an interrupted process
// left incomplete.
func Open(o Options) (*Store, error) {
	if !filepath.IsAbs(o.Dir) {
		return nil, fmt.Errorf("image store: %q is not an absolute path: %w", o.Dir, errdefs.ErrInvalidArgument)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Store{dir: o.Dir, limits: o.Limits.withDefaults(), log: o.Log, arch: goarch, owners: os.Geteuid() == 0,
		holds: map[string]int{}}
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

// sweep makes the index and the directories agree. A directory missing from the index was being
// created or removed. An image without an archive is dropped.
func (s *Store) sweep() error {
	for _, id := range s.index.ids() {
		if _, err := os.Stat(s.archivePath(id)); err != nil {
			s.log.Warn("image archive not found; dropping the image", "image", id, "error", err)
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

// Scratch creates a temporary directory on the disk of the store. The caller must call remove; Open
// also removes directories left by an earlier process.
func (s *Store) Scratch() (dir string, remove func(), err error) { return s.stage() }

// stage creates a temporary directory. undo removes it and must always be called.
func (s *Store) stage() (dir string, undo func(), err error) {
	dir, err = os.MkdirTemp(s.path("tmp"), "")
	if err != nil {
		return "", nil, diskError(fmt.Errorf("image store: %w", err))
	}
	return dir, func() {
		if err := os.RemoveAll(dir); err != nil {
			s.log.Warn("failed to remove temporary directory of the image store", "dir", dir, "error", err)
		}
	}, nil
}

// Resolve finds an image by name ("debian:12"; the default tag is latest), by id ("sha256:…", also
// after a name and @), or by at least 12 leading hex digits of its id. Root is set if the image is
// unpacked.
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

// Get returns the image that Resolve finds for ref.
func (s *Store) Get(ref string) (Image, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, _, err := s.index.find(ref)
	if err != nil {
		return Image{}, err
	}
	return s.view(id), nil
}

// List returns all images, sorted by name; images without a name come last.
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
		Imported: r.Imported, Path: r.Path, Unpacked: s.unpacked(id), Digests: slices.Clone(r.Digests),
		Pinned: r.Pinned, Used: s.used(id)}
}

// Tag adds a name to an image.
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

// Remove removes a name, and the image if it was the last one. By id, it removes the image with all
// names. The image must not be in use.
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

// discard removes an image from the index and then moves its files away; Open removes what a crash
// leaves in between. The files are deleted after the lock is released. check, unless nil, is called
// with s.mu held and can refuse.
func (s *Store) discard(ctx context.Context, id string, check func() error) error {
	unlock, err := s.unpacking.Lock(ctx, id)
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
	if check != nil {
		if err := check(); err != nil {
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

// diskError adds the class ResourceExhausted if the disk is full.
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
