package ref

import (
	"regexp"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// Pattern is one entry of an allow-list. It is written like a reference, normalised in the same
// way, and compared part by part:
//
//   - The registry must be equal, with its port. A first label "*" matches exactly one label.
//   - "*" in a part of the path matches any characters but "/". A last part "**" matches one or
//     more parts. The whole path must match.
//   - Without a tag, every tag and digest matches. With a tag, in which "*" matches any characters,
//     only references by tag match: whether a digest ever had that tag is unknown.
//   - With a digest, only that digest matches, independent of the tag of the pattern.
//
// "*" alone is refused: use an empty list to allow everything.
type Pattern struct {
	text         string
	registry     string
	path         []string
	tag          string
	digest       string
	rest, labels bool
}

// ParsePattern parses a pattern.
func ParsePattern(s string) (Pattern, error) {
	p := Pattern{text: s}
	bad := func(format string, args ...any) (Pattern, error) {
		return Pattern{}, invalid("pattern %q: "+format, append([]any{clip.Message(s)}, args...)...)
	}
	switch {
	case len(s) > maxLength:
		return bad("is longer than %d characters", maxLength)
	case strings.Trim(s, "*/") == "":
		return bad("names no repository: use an empty list to allow every image")
	}
	name, sum, pinned := strings.Cut(s, "@")
	if pinned {
		if d := digest.Digest(sum); d.Validate() != nil || d.Algorithm() != digest.SHA256 {
			return bad("%q is not a sha256 digest", clip.Message(sum))
		}
		p.digest = sum
	}
	last := strings.LastIndex(name, "/")
	if at := strings.LastIndex(name, ":"); at > last && (last >= 0 || !strings.Contains(name[:at], ".")) {
		name, p.tag = name[:at], name[at+1:]
		if !tagPattern.MatchString(p.tag) {
			return bad("invalid tag %q", clip.Message(p.tag))
		}
	}
	first, rest, more := strings.Cut(name, "/")
	switch {
	case more && isHost(first):
		p.registry, p.path = first, strings.Split(rest, "/")
	case more:
		p.registry, p.path = hub, strings.Split(name, "/")
	case isHost(first):
		return bad("names only a registry: use %s/** for all of its images", first)
	default:
		p.registry, p.path = hub, []string{official, name}
	}
	if p.registry == hubIndex {
		p.registry = hub
	}
	if p.registry == hub && len(p.path) == 1 && p.path[0] != "**" {
		p.path = []string{official, p.path[0]}
	}
	if !hostPattern.MatchString(p.registry) {
		return bad("invalid host %q: use host or host:port; * may only be its first label", clip.Message(p.registry))
	}
	p.labels = strings.HasPrefix(p.registry, "*.")
	if n := len(p.path) - 1; p.path[n] == "**" {
		p.rest, p.path = true, p.path[:n]
	}
	for _, part := range p.path {
		if !partPattern.MatchString(part) || strings.Contains(part, "**") {
			return bad("invalid path component %q; ** may only be the last one", clip.Message(part))
		}
	}
	return p, nil
}

const (
	hub      = "docker.io"
	hubIndex = "index.docker.io"
	official = "library"
)

var (
	hostPattern = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?` +
		`(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(:[0-9]+)?$`)
	partPattern = regexp.MustCompile(`^[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?$`)
	tagPattern  = regexp.MustCompile(`^[\w*][\w.*-]{0,127}$`)
)

// isHost reports whether the first part of a reference is a host, by the rule for references.
func isHost(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first
}

// String returns the pattern as written.
func (p Pattern) String() string { return p.text }

// MatchesRepository reports whether the pattern has neither tag nor digest, so that it matches
// whole repositories.
func (p Pattern) MatchesRepository() bool { return p.tag == "" && p.digest == "" }

// Match reports whether the pattern matches a reference.
func (p Pattern) Match(r Reference) bool {
	host := r.Registry
	if p.labels {
		label, rest, ok := strings.Cut(host, ".")
		if !ok || label == "" {
			return false
		}
		host = "*." + rest
	}
	if !strings.EqualFold(host, p.registry) {
		return false
	}
	parts := strings.Split(r.Repository, "/")
	switch {
	case p.rest && len(parts) <= len(p.path), !p.rest && len(parts) != len(p.path):
		return false
	}
	for i, part := range p.path {
		if !glob(part, parts[i]) {
			return false
		}
	}
	switch {
	case p.digest != "":
		return r.Digest == p.digest
	case p.tag != "":
		return r.Digest == "" && glob(p.tag, r.Tag)
	}
	return true
}

// glob reports whether s matches pattern, where "*" matches any characters. Its time is at most
// proportional to the product of the lengths.
func glob(pattern, s string) bool {
	p, at, star, back := 0, 0, -1, 0
	for at < len(s) {
		switch {
		case p < len(pattern) && pattern[p] == '*':
			star, back = p, at
			p++
		case p < len(pattern) && pattern[p] == s[at]:
			p++
			at++
		case star >= 0:
			back++
			p, at = star+1, back
		default:
			return false
		}
	}
	return strings.Trim(pattern[p:], "*") == ""
}

// List is an allow-list. An empty list allows every reference.
type List []Pattern

// ParseList parses patterns.
func ParseList(patterns []string) (List, error) {
	var out List
	for _, s := range patterns {
		p, err := ParsePattern(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Has reports whether the list allows a reference.
func (l List) Has(r Reference) bool {
	for _, p := range l {
		if p.Match(r) {
			return true
		}
	}
	return len(l) == 0
}

// String returns the patterns for a message, truncated.
func (l List) String() string {
	texts := make([]string, len(l))
	for i, p := range l {
		texts[i] = p.text
	}
	return clip.Message(strings.Join(texts, ", "))
}
