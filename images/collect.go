package images

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// DefaultFresh is how long a used image is kept regardless of the budget, because the caller
	// that fetched it is about to use it.
	DefaultFresh = 10 * time.Minute
	// blobAge is how long the files of an interrupted pull are kept.
	blobAge = 24 * time.Hour
)

// Collection configures Collect.
type Collection struct {
	// Budget is the maximum disk use of images and blobs, in bytes; 0 means no limit. MaxAge is how
	// long an image may be unused; 0 means indefinitely.
	Budget int64
	MaxAge time.Duration
	// Fresh replaces DefaultFresh; a negative value means none.
	Fresh time.Duration
	// Needed maps the ids of images that must stay to their users. An image that comes into use
	// later must be touched first.
	Needed map[string][]string
	// Dry only reports what would be removed.
	Dry bool
}

// Verdict is what happens to an image and why.
type Verdict struct {
	Image Image
	// Bytes is its disk use: the size of its archive, and the size of its layers if it is unpacked.
	Bytes   int64
	Removed bool
	Why     string
}

// Collected is the result of a collection.
type Collected struct {
	// Verdicts are about all images, the least recently used first.
	Verdicts []Verdict
	// Blobs and BlobBytes count removed files of interrupted pulls.
	Blobs     int
	BlobBytes int64
	// Freed and Used are in bytes: removed, and left.
	Freed, Used int64
}

// Collect removes files of interrupted pulls and images that were unused for too long. While the
// total is over the budget, it also removes the least recently used images. Images that are needed,
// pinned, held or fresh stay. Open cleans up after a crash. Errors of single images are joined.
func (s *Store) Collect(ctx context.Context, c Collection) (Collected, error) {
	if c.Fresh == 0 {
		c.Fresh = DefaultFresh
	}
	var out Collected
	for _, i := range s.List() {
		bytes := s.diskOf(i)
		out.Used += bytes
		out.Verdicts = append(out.Verdicts, Verdict{Image: i, Bytes: bytes})
	}
	slices.SortStableFunc(out.Verdicts, func(a, b Verdict) int { return a.Image.Used.Compare(b.Image.Used) })
	err := s.collectBlobs(c, &out)
	for i := range out.Verdicts {
		v := &out.Verdicts[i]
		if err := context.Cause(ctx); err != nil {
			return out, err
		}
		if v.Why = s.keepReason(c, v.Image); v.Why != "" {
			continue
		}
		switch idle := time.Since(v.Image.Used); {
		case c.MaxAge > 0 && idle > c.MaxAge:
			v.Why = fmt.Sprintf("unused for %s, more than %s", idle.Round(time.Second), c.MaxAge)
		case c.Budget > 0 && out.Used > c.Budget:
			v.Why = "over the budget and least recently used"
		default:
			v.Why = "within budget and age"
			continue
		}
		if !c.Dry {
			if gone := s.discard(ctx, v.Image.ID, s.unchanged(v.Image)); gone != nil {
				v.Why = "could not be removed"
				if errors.Is(gone, errChanged) {
					v.Why = "came into use during the collection"
				} else {
					err = errors.Join(err, gone)
				}
				continue
			}
			s.log.Info("image collected", "image", v.Image.ID, "refs", v.Image.Refs, "bytes", v.Bytes, "why", v.Why)
		}
		v.Removed = true
		out.Used -= v.Bytes
		out.Freed += v.Bytes
	}
	return out, err
}

// keepReason returns why an image is kept regardless of size and age, or "".
func (s *Store) keepReason(c Collection, i Image) string {
	if by := c.Needed[i.ID]; len(by) > 0 {
		return "needed by " + strings.Join(by[:min(len(by), 3)], ", ")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.holds[i.ID] > 0:
		return "used by an operation in progress"
	case i.Pinned:
		return "pinned"
	case c.Fresh > 0 && time.Since(i.Used) < c.Fresh:
		return fmt.Sprintf("used within the last %s", c.Fresh)
	}
	return ""
}

// errChanged reports that an image changed during the collection.
var errChanged = fmt.Errorf("the image came into use: %w", errdefs.ErrFailedPrecondition)

// unchanged returns a check, to be called with s.mu held, that an image was not used since was.
func (s *Store) unchanged(was Image) func() error {
	return func() error {
		if s.index.Images[was.ID].Pinned || s.holds[was.ID] > 0 || !s.used(was.ID).Equal(was.Used) {
			return errChanged
		}
		return nil
	}
}

// Hold protects an image from collection until release is called.
func (s *Store) Hold(id string) (release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds[id]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.holds[id]--; s.holds[id] <= 0 {
			delete(s.holds, id)
		}
	}
}

// diskOf returns the disk use of an image in bytes. For the root, it uses the size of the layers:
// walking the files would take too long.
func (s *Store) diskOf(i Image) int64 {
	var bytes int64
	if info, err := os.Stat(s.archivePath(i.ID)); err == nil {
		bytes = info.Size()
	}
	if i.Unpacked {
		bytes += i.SizeBytes
	}
	return bytes
}

// collectBlobs removes old files of interrupted pulls, or all while the total is over the budget.
// They can be downloaded again.
func (s *Store) collectBlobs(c Collection, out *Collected) error {
	entries, err := os.ReadDir(s.path("blobs"))
	if err != nil {
		return fmt.Errorf("collect blobs: %w", err)
	}
	type left struct {
		name string
		fs.FileInfo
	}
	var blobs []left
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			blobs = append(blobs, left{e.Name(), info})
			out.Used += info.Size()
		}
	}
	slices.SortFunc(blobs, func(a, b left) int { return a.ModTime().Compare(b.ModTime()) })
	var errs []error
	for _, b := range blobs {
		if time.Since(b.ModTime()) < blobAge && (c.Budget == 0 || out.Used <= c.Budget) {
			continue
		}
		gone, err := s.dropBlob(b.name, c.Dry)
		if errs = append(errs, err); gone {
			out.Blobs++
			out.BlobBytes += b.Size()
			out.Used -= b.Size()
			out.Freed += b.Size()
		}
	}
	return errors.Join(errs...)
}

// dropBlob removes a file of a download unless it is held.
func (s *Store) dropBlob(name string, dry bool) (gone bool, err error) {
	hex, _, _ := strings.Cut(name, ".")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds["sha256:"+hex] > 0 {
		return false, nil
	}
	if dry {
		return true, nil
	}
	err = os.Remove(filepath.Join(s.path("blobs"), name))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // its pull ended or completed it
	}
	if err != nil {
		return false, fmt.Errorf("remove blob: %w", err)
	}
	return true, nil
}
