// Package ref reads references to images in registries, and the patterns of
// allow-lists.
//
// It is pure: it opens nothing and starts no goroutine. Errors are of class
// InvalidArgument.
package ref

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
)

// maxLength is more than any registry takes: a host name, a repository and a
// tag of their greatest lengths and a digest.
const maxLength = 1024

// Reference names an image in a registry, in normal form: "debian" is
// docker.io/library/debian:latest.
type Reference struct {
	Registry   string // "docker.io", "registry.example:5000"
	Repository string // "library/debian"
	// Tag is "latest" where neither a tag nor a digest was given.
	Tag string
	// Digest is of a manifest or an index, "" if none was given.
	Digest string
}

// Parse reads a reference as people write it.
func Parse(s string) (Reference, error) {
	if len(s) > maxLength {
		return Reference{}, invalid("image reference is longer than %d characters", maxLength)
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return Reference{}, invalid("image reference %q: %v", clip(s), err)
	}
	r := Reference{Registry: reference.Domain(named), Repository: reference.Path(named)}
	if t, ok := named.(reference.Tagged); ok {
		r.Tag = t.Tag()
	}
	if d, ok := named.(reference.Digested); ok {
		if d.Digest().Algorithm() != digest.SHA256 {
			return Reference{}, invalid("image reference %q: only sha256 digests are supported", clip(s))
		}
		r.Digest = d.Digest().String()
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

// Hosted says whether a reference names its registry, and does not leave it to
// the default.
func Hosted(s string) bool {
	first, _, more := strings.Cut(s, "/")
	return more && isHost(first)
}

// Name is registry and repository.
func (r Reference) Name() string { return r.Registry + "/" + r.Repository }

// String is the whole reference in normal form.
func (r Reference) String() string {
	s := r.Name()
	if r.Tag != "" {
		s += ":" + r.Tag
	}
	if r.Digest != "" {
		s += "@" + r.Digest
	}
	return s
}

// Pinned is the same repository by digest alone.
func (r Reference) Pinned(digest string) string { return r.Name() + "@" + digest }

// Familiar is the reference as people write it: without docker.io/library.
func (r Reference) Familiar() string {
	named, err := reference.ParseNormalizedNamed(r.String())
	if err != nil {
		return r.String()
	}
	return reference.FamiliarString(named)
}

func invalid(format string, args ...any) error {
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

func clip(s string) string {
	const most = 200
	if len(s) > most {
		s = s[:most] + "…"
	}
	return strings.ToValidUTF8(s, "�")
}
