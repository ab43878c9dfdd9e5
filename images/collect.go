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
	// DefaultFresh is how long an image is kept after its last use whatever the
	// budget: whoever fetched it is about to use it.
	DefaultFresh = 10 * time.Minute
	// blobAge is how long what is left of a pull waits to be taken up.
	blobAge = 24 * time.Hour
)

// Collection says what to collect.
type Collection struct {
	// Budget is what images and blobs may take of the disk, in bytes; 0 is no
	// bound. MaxAge is how long an image may be unused; 0 is for ever.
	Budget int64
	MaxAge time.Duration
	// Fresh replaces DefaultFresh; negative is none.
	Fresh time.Duration
	// Needed are the images that must stay, by id, and what needs them. It is
	// called once; what comes to be needed meanwhile has to be touched before.
	Needed map[string][]string
	// Dry only tells.
	Dry bool
}

// Verdict is what becomes of an image, and why.
type Verdict struct {
	Image Image
	// Bytes is what it takes of the disk: its archive as it is, and its unpacked
	// root as large as its layers are.
	Bytes   int64
	Removed bool
	Why     string
}

// Collected is what a collection did, or would do.
type Collected struct {
	// Verdicts are of all images, the longest unused first.
	Verdicts []Verdict
	// Blobs and BlobBytes are of left downloads that went.
	Blobs     int
	BlobBytes int64
	// Freed is all that went, Used what is left.
	Freed, Used int64
}

// Collect removes what nothing needs: left downloads, images that were unused
// for too long, and while all together are over the budget the longest unused
// ones. What is needed, pinned, held or fresh stays. A crash on the way leaves
// nothing that Open does not sweep; errors about single images are joined.
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
		if v.Why = s.stays(c, v.Image); v.Why != "" {
			continue
		}
		switch idle := time.Since(v.Image.Used); {
		case c.MaxAge > 0 && idle > c.MaxAge:
			v.Why = fmt.Sprintf("unused for %s, more than %s", idle.Round(time.Second), c.MaxAge)
		case c.Budget > 0 && out.Used > c.Budget:
			v.Why = "over the budget, and longest unused"
		default:
			v.Why = "within budget and age"
			continue
		}
		if !c.Dry {
			if gone := s.discard(ctx, v.Image.ID, s.unchanged(v.Image)); gone != nil {
				v.Why = "could not be removed"
				if errors.Is(gone, errChanged) {
					v.Why = "came into use meanwhile"
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

// stays says why an image is kept whatever its size and age.
func (s *Store) stays(c Collection, i Image) string {
	if by := c.Needed[i.ID]; len(by) > 0 {
		return "needed by " + strings.Join(by[:min(len(by), 3)], ", ")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.holds[i.ID] > 0:
		return "needed by what is under way"
	case i.Pinned:
		return "pinned"
	case c.Fresh > 0 && time.Since(i.Used) < c.Fresh:
		return fmt.Sprintf("used within the last %s", c.Fresh)
	}
	return ""
}

// errChanged is for an image that is not what it was when it was looked at.
var errChanged = fmt.Errorf("the image came into use: %w", errdefs.ErrFailedPrecondition)

// unchanged says, with the lock held, whether an image may go as it was seen.
func (s *Store) unchanged(was Image) func() error {
	return func() error {
		if s.index.Images[was.ID].Pinned || s.holds[was.ID] > 0 || !s.used(was.ID).Equal(was.Used) {
			return errChanged
		}
		return nil
	}
}

// Hold keeps an image from being collected until it is released.
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

// diskOf is what an image takes of the disk. Of the root that is its layers'
// size: to walk it would take longer than all else.
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

// collectBlobs removes left downloads that are old, or all while there is more
// than the budget: they cost no more than to fetch them again.
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

// dropBlob removes a file of a download that nobody holds.
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
		return false, nil // its pull has ended meanwhile, or has it whole
	}
	if err != nil {
		return false, fmt.Errorf("remove blob: %w", err)
	}
	return true, nil
}
