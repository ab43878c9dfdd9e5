package images

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
	"time"

	"github.com/opencontainers/go-digest"
)

// Blob is a layer on its way from a registry: a file that whoever holds it may
// fill. Release has to be called.
type Blob struct {
	// Path is where its content comes to lie; whatever is beside it under that
	// name with a suffix is kept as long.
	Path   string
	s      *Store
	digest string
}

// HoldBlob keeps a blob from being collected until it is released.
func (s *Store) HoldBlob(sum string) (*Blob, error) {
	if err := checkDigest(sum); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[sum]++
	return &Blob{Path: s.blobPath(sum), s: s, digest: sum}, nil
}

func (s *Store) blobPath(sum string) string { return s.path("blobs", hexOf(sum)) }

// Lock waits until nobody else fills the blob.
func (b *Blob) Lock(ctx context.Context) (unlock func(), err error) {
	return b.s.fetching.lock(ctx, b.digest)
}

// Release lets go of the blob. One that is spent goes with its last holder;
// another stays, and is taken up when it is asked for again.
func (b *Blob) Release(spent bool) error {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	if b.s.holds[b.digest]--; b.s.holds[b.digest] > 0 {
		return nil
	}
	delete(b.s.holds, b.digest)
	if !spent {
		return nil
	}
	if err := os.Remove(b.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove blob: %w", err)
	}
	return nil
}

func (s *Store) openBlob(sum string) (io.ReadCloser, int64, error) {
	f, err := os.OpenFile(s.blobPath(sum), os.O_RDONLY|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open blob: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, 0, errors.Join(err, f.Close())
	}
	return f, info.Size(), nil
}

// Touch notes that an image is of use now. That costs no more than the time of
// a file, and may fail: an image is then collected a little earlier.
func (s *Store) Touch(id string) {
	if digest.Digest(id).Validate() != nil {
		return
	}
	now := time.Now()
	if err := os.Chtimes(s.path("archives", hexOf(id), "config.json"), now, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.log.Debug("the use of an image is not noted", "image", id, "error", err)
	}
}

// used is when an image was touched or, if it never was, imported.
func (s *Store) used(id string) time.Time {
	info, err := os.Stat(s.path("archives", hexOf(id), "config.json"))
	if err != nil {
		return s.index.Images[id].Imported
	}
	return info.ModTime().UTC()
}
