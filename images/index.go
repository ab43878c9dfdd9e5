package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/hostfile"
)

const indexVersion = 1

// index is the content of index.json.
type index struct {
	Version int               `json:"version"`
	Images  map[string]record `json:"images"` // by id
	Refs    map[string]string `json:"refs"`   // name → id
	// Seen maps digests of imported archives to images. Files maps paths to those archives, so that
	// a repeated import is cheap.
	Seen  map[string]seenArchive `json:"seen"`
	Files map[string]fileStamp   `json:"files"`
}

type record struct {
	Format       string    `json:"format"`
	Architecture string    `json:"architecture"`
	Size         int64     `json:"size"`
	Imported     time.Time `json:"imported"`
	Path         string    `json:"path,omitempty"`
	// Digests are the manifest digests it was pulled by, as "host/path@sha256:…".
	Digests []string `json:"digests,omitempty"`
	Pinned  bool     `json:"pinned,omitempty"`
}

type seenArchive struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"` // the name in the archive
}

type fileStamp struct {
	Size    int64  `json:"size"`
	Changed int64  `json:"changed_ns"` // ctime, which programs cannot set
	Inode   uint64 `json:"inode"`
	Digest  string `json:"digest"`
}

// maxFiles is the maximum number of remembered archive paths.
const maxFiles = 256

func (s *Store) load() error {
	s.index = index{Version: indexVersion, Images: map[string]record{}, Refs: map[string]string{},
		Seen: map[string]seenArchive{}, Files: map[string]fileStamp{}}
	raw, err := os.ReadFile(s.path("index.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the image index: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s.index); err != nil {
		return fmt.Errorf("image index %s is damaged (remove it to import all images again): %w: %w",
			s.path("index.json"), err, errdefs.ErrDataLoss)
	}
	if s.index.Version != indexVersion {
		return fmt.Errorf("image index %s has version %d, want %d: %w", s.path("index.json"),
			s.index.Version, indexVersion, errdefs.ErrFailedPrecondition)
	}
	for id := range s.index.Images {
		if err := checkDigest(id); err != nil {
			return fmt.Errorf("image index %s: %w: %w", s.path("index.json"), err, errdefs.ErrDataLoss)
		}
	}
	for name, id := range s.index.Refs {
		if _, known := s.index.Images[id]; !known {
			delete(s.index.Refs, name)
		}
	}
	return nil
}

// update changes the index on disk and then in memory, so that a full disk changes neither and a
// crash leaves the old or the new index. The caller holds s.mu.
func (s *Store) update(change func(*index)) error {
	next := s.index
	next.Images, next.Refs = maps.Clone(next.Images), maps.Clone(next.Refs)
	next.Seen, next.Files = maps.Clone(next.Seen), maps.Clone(next.Files)
	change(&next)
	raw, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return fmt.Errorf("write the image index: %w", err)
	}
	if err := hostfile.ReplaceSynced(s.path("index.json"), raw, 0o600, nil); err != nil {
		return diskError(fmt.Errorf("write the image index: %w", err))
	}
	s.index = next
	return nil
}

func (x *index) ids() []string {
	first := func(id string) string {
		if refs := x.refsOf(id); len(refs) > 0 {
			return refs[0]
		}
		return "\xff" + id // sorts after all names
	}
	return slices.SortedFunc(maps.Keys(x.Images), func(a, b string) int { return strings.Compare(first(a), first(b)) })
}

func (x *index) refsOf(id string) []string {
	refs := []string{}
	for name, of := range x.Refs {
		if of == id {
			refs = append(refs, name)
		}
	}
	slices.Sort(refs)
	return refs
}

func (x *index) drop(id string) {
	delete(x.Images, id)
	maps.DeleteFunc(x.Refs, func(_, of string) bool { return of == id })
	maps.DeleteFunc(x.Seen, func(_ string, s seenArchive) bool { return s.ID == id })
	maps.DeleteFunc(x.Files, func(_ string, f fileStamp) bool { _, known := x.Seen[f.Digest]; return !known })
}

// pulled returns the id of the image that was pulled by this reference with a digest, or "".
func (x *index) pulled(text string) string {
	r, err := ref.Parse(text)
	if err != nil {
		return ""
	}
	for id, record := range x.Images {
		if slices.Contains(record.Digests, r.Pinned(r.Digest)) {
			return id
		}
	}
	return ""
}

var hexPrefix = regexp.MustCompile(`^[0-9a-f]{12,64}$`)

// find returns the id for a reference and a name of the image, or "" if it has none.
func (x *index) find(want string) (id, name string, err error) {
	if _, after, ok := strings.Cut(want, "@"); ok {
		if id := x.pulled(want); id != "" {
			return id, want, nil
		}
		want = after
	}
	switch {
	case isID(want):
		id = want
	case hexPrefix.MatchString(want):
		for known := range x.Images {
			if strings.HasPrefix(hexOf(known), want) {
				if id != "" {
					return "", "", invalid("image %q is ambiguous: several ids start with it", want)
				}
				id = known
			}
		}
	}
	if _, known := x.Images[id]; known {
		if refs := x.refsOf(id); len(refs) > 0 {
			name = refs[0]
		}
		return id, name, nil
	}
	if id == "" && !isID(want) {
		if name, err = ParseName(want); err != nil {
			return "", "", err
		}
		if id, known := x.Refs[name]; known {
			return id, name, nil
		}
	}
	return "", "", fmt.Errorf("image %q not found; %s: %w", clip.Message(want), x.known(), errdefs.ErrNotFound)
}

// known lists the known names for an error message.
func (x *index) known() string {
	names := slices.Sorted(maps.Keys(x.Refs))
	const most = 10
	switch {
	case len(names) == 0:
		return "no images imported yet"
	case len(names) > most:
		return fmt.Sprintf("known images: %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return "known images: " + strings.Join(names, ", ")
}

// ParseName returns an image name in its stored form: the short form with its tag, "latest" by
// default. A name with a digest is an error.
func ParseName(name string) (string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", invalid("image name %q: %v", clip.Message(name), err)
	}
	if _, is := named.(reference.Digested); is {
		return "", invalid("image name %q: must not contain a digest", clip.Message(name))
	}
	return reference.FamiliarString(reference.TagNameOnly(named)), nil
}

// checkDigest accepts only SHA-256 digests: they become part of paths.
func checkDigest(id string) error {
	if d := digest.Digest(id); d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return invalid("%q is not a sha256 digest", clip.Message(id))
	}
	return nil
}
