package images

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/images/ref"
)

const indexVersion = 1

// index is index.json.
type index struct {
	Version int               `json:"version"`
	Images  map[string]record `json:"images"` // by id
	Refs    map[string]string `json:"refs"`   // name → id
	// Seen are the archives that were imported, by the digest of the whole
	// file, Files where they lay: importing the same again costs nothing.
	Seen  map[string]seen `json:"seen"`
	Files map[string]file `json:"files"`
}

type record struct {
	Format       string    `json:"format"`
	Architecture string    `json:"architecture"`
	Size         int64     `json:"size"`
	Imported     time.Time `json:"imported"`
	Path         string    `json:"path,omitempty"`
	// Digests are the manifests it was pulled by, "host/path@sha256:…".
	Digests []string `json:"digests,omitempty"`
	Pinned  bool     `json:"pinned,omitempty"`
}

type seen struct {
	ID   string `json:"id"`
	Name string `json:"name,omitempty"` // the archive's own
}

type file struct {
	Size    int64  `json:"size"`
	Changed int64  `json:"changed_ns"` // ctime: cannot be set back
	Inode   uint64 `json:"inode"`
	Digest  string `json:"digest"`
}

// maxFiles bounds what is remembered of where archives lay.
const maxFiles = 256

func (s *Store) load() error {
	s.index = index{Version: indexVersion, Images: map[string]record{}, Refs: map[string]string{}, Seen: map[string]seen{}, Files: map[string]file{}}
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
		return fmt.Errorf("image index %s cannot be read (remove it to import all images again): %w: %w", s.path("index.json"), err, errdefs.ErrDataLoss)
	}
	if s.index.Version != indexVersion {
		return fmt.Errorf("image index %s has version %d, this build knows %d: %w", s.path("index.json"), s.index.Version, indexVersion, errdefs.ErrFailedPrecondition)
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

// update changes the index on disk first and in memory then, so that a full
// disk changes neither, and a crash leaves the old or the new one. The caller
// holds s.mu.
func (s *Store) update(change func(*index)) error {
	next := s.index
	next.Images, next.Refs = maps.Clone(next.Images), maps.Clone(next.Refs)
	next.Seen, next.Files = maps.Clone(next.Seen), maps.Clone(next.Files)
	change(&next)
	raw, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return fmt.Errorf("write the image index: %w", err)
	}
	if err := writeFile(s.path("index.json"), raw, s.path("tmp", "index.json")); err != nil {
		return diskError(fmt.Errorf("write the image index: %w", err))
	}
	s.index = next
	return nil
}

// writeFile writes by way of temp and makes both content and name last.
func writeFile(path string, content []byte, temp string) error {
	f, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (x *index) ids() []string {
	first := func(id string) string {
		if refs := x.refsOf(id); len(refs) > 0 {
			return refs[0]
		}
		return "\xff" + id // after all names
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
	maps.DeleteFunc(x.Seen, func(_ string, s seen) bool { return s.ID == id })
	maps.DeleteFunc(x.Files, func(_ string, f file) bool { _, known := x.Seen[f.Digest]; return !known })
}

// pulled is the id of what was pulled by this reference with a digest, or "".
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

// find returns the id that ref means, and a name of it, "" if it has none.
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
					return "", "", invalid("image %q is the start of more than one id", want)
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
	return "", "", fmt.Errorf("image %q is not here; %s: %w", clip(want), x.known(), errdefs.ErrNotFound)
}

// known tells people which names there are.
func (x *index) known() string {
	names := slices.Sorted(maps.Keys(x.Refs))
	const most = 10
	switch {
	case len(names) == 0:
		return "no image has been imported yet"
	case len(names) > most:
		return fmt.Sprintf("known are %s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return "known are " + strings.Join(names, ", ")
}

// ParseName brings an image's name into the form it is kept in: as people
// write it, with its tag ("latest" if there is none). A digest is no name.
func ParseName(name string) (string, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return "", invalid("image name %q: %v", clip(name), err)
	}
	if _, is := named.(reference.Digested); is {
		return "", invalid("image name %q: a digest cannot be given as a name", clip(name))
	}
	return reference.FamiliarString(reference.TagNameOnly(named)), nil
}

// checkDigest lets SHA-256 through only: what becomes part of a path.
func checkDigest(id string) error {
	if d := digest.Digest(id); d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return invalid("%q is not a sha256 digest", clip(id))
	}
	return nil
}

// clip keeps foreign text in messages short.
func clip(s string) string {
	const most = 200
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
