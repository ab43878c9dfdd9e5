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

// Blob is a held file for a layer that is being downloaded. Its holder must call Release.
type Blob struct {
	// Path is the file for the content. Files with this name and a suffix are held too.
	Path   string
	s      *Store
	digest string
}

// HoldBlob protects a blob from collection until it is released.
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

// Lock waits until no other pull writes the blob. It returns early when ctx ends.
func (b *Blob) Lock(ctx context.Context) (unlock func(), err error) {
	return b.s.fetching.Lock(ctx, b.digest)
}

// Release ends the hold. If spent is true and this is the last holder, the file is removed.
// Otherwise it stays, so that a later pull can resume.
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

// Touch records that an image is used now, as the time of a file. If it fails, the image may be
// collected earlier.
func (s *Store) Touch(id string) {
	if digest.Digest(id).Validate() != nil {
		return
	}
	now := time.Now()
	if err := os.Chtimes(s.path("archives", hexOf(id), "config.json"), now, now); err != nil &&
		!errors.Is(err, fs.ErrNotExist) {
		s.log.Debug("failed to record the use of an image", "image", id, "error", err)
	}
}

// used returns when an image was last touched, or else imported.
func (s *Store) used(id string) time.Time {
	info, err := os.Stat(s.path("archives", hexOf(id), "config.json"))
	if err != nil {
		return s.index.Images[id].Imported
	}
	return info.ModTime().UTC()
}
