// Package ref parses image references and the patterns of allow-lists. It does no I/O and starts no
// goroutine. Errors have class InvalidArgument.
package ref

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// maxLength is the maximum length of a reference in bytes, more than any registry accepts.
const maxLength = 1024

// Reference is a normalised image reference: "debian" is docker.io/library/debian:latest.
type Reference struct {
	Registry   string // such as "docker.io" or "registry.example:5000"
	Repository string // such as "library/debian"
	// Tag is "latest" if the reference has neither tag nor digest.
	Tag string
	// Digest is of a manifest or an index, or "".
	Digest string
}

// Parse parses a reference in short or full form.
func Parse(s string) (Reference, error) {
	if len(s) > maxLength {
		return Reference{}, invalid("image reference is longer than %d characters", maxLength)
	}
	named, err := reference.ParseNormalizedNamed(s)
	if err != nil {
		return Reference{}, invalid("image reference %q: %v", clip.Message(s), err)
	}
	r := Reference{Registry: reference.Domain(named), Repository: reference.Path(named)}
	if t, ok := named.(reference.Tagged); ok {
		r.Tag = t.Tag()
	}
	if d, ok := named.(reference.Digested); ok {
		if d.Digest().Algorithm() != digest.SHA256 {
			return Reference{}, invalid("image reference %q: only sha256 digests are supported", clip.Message(s))
		}
		r.Digest = d.Digest().String()
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

// HasRegistry reports whether a reference names its registry explicitly.
func HasRegistry(s string) bool {
	first, _, more := strings.Cut(s, "/")
	return more && isHost(first)
}

// Name returns registry and repository.
func (r Reference) Name() string { return r.Registry + "/" + r.Repository }

// String returns the full normalised reference.
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

// Pinned returns a reference to the same repository by digest only.
func (r Reference) Pinned(digest string) string { return r.Name() + "@" + digest }

// Familiar returns the short form, without docker.io/library.
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
