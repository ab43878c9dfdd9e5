package ref

import (
	"regexp"
	"strings"

	"github.com/opencontainers/go-digest"
)

// Pattern is one line of an allow-list. It is written as a reference is and
// brought to the same normal form, and then compared part by part:
//
//   - The registry is compared whole, with its port: a pattern without a port
//     is none with one. A first label of "*" stands for exactly one label.
//   - "*" in a part of the path stands for any characters but "/"; a last part
//     "**" for one part or more. A path is compared from its first part to its
//     last.
//   - Without a tag, every tag and every digest matches. With a tag, in which
//     "*" stands for any characters, only references by tag match: that a digest
//     was ever given that tag, nobody knows.
//   - With a digest only that digest does, whatever tag stands before it.
//
// A "*" alone is refused: an empty list is how to say "every one".
type Pattern struct {
	text         string
	registry     string
	path         []string
	tag          string
	digest       string
	rest, labels bool
}

// ParsePattern reads a pattern.
func ParsePattern(s string) (Pattern, error) {
	p := Pattern{text: s}
	bad := func(format string, args ...any) (Pattern, error) {
		return Pattern{}, invalid("pattern %q: "+format, append([]any{clip(s)}, args...)...)
	}
	switch {
	case len(s) > maxLength:
		return bad("is longer than %d characters", maxLength)
	case strings.Trim(s, "*/") == "":
		return bad("names nothing; leave the list empty to allow every image")
	}
	name, sum, pinned := strings.Cut(s, "@")
	if pinned {
		if d := digest.Digest(sum); d.Validate() != nil || d.Algorithm() != digest.SHA256 {
			return bad("%q is not a sha256 digest", clip(sum))
		}
		p.digest = sum
	}
	last := strings.LastIndex(name, "/")
	if at := strings.LastIndex(name, ":"); at > last && (last >= 0 || !strings.Contains(name[:at], ".")) {
		name, p.tag = name[:at], name[at+1:]
		if !tagPattern.MatchString(p.tag) {
			return bad("%q is no tag", clip(p.tag))
		}
	}
	first, rest, more := strings.Cut(name, "/")
	switch {
	case more && isHost(first):
		p.registry, p.path = first, strings.Split(rest, "/")
	case more:
		p.registry, p.path = hub, strings.Split(name, "/")
	case isHost(first):
		return bad("names a registry and nothing in it; %s/** is all that it has", first)
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
		return bad("%q is no host or host:port; * can only stand for its first label", clip(p.registry))
	}
	p.labels = strings.HasPrefix(p.registry, "*.")
	if n := len(p.path) - 1; p.path[n] == "**" {
		p.rest, p.path = true, p.path[:n]
	}
	for _, part := range p.path {
		if !partPattern.MatchString(part) || strings.Contains(part, "**") {
			return bad("%q is no part of a repository's name; ** can only be the last one", clip(part))
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
	hostPattern = regexp.MustCompile(`^(\*\.)?([a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*|\[[0-9a-fA-F:]+\])(:[0-9]+)?$`)
	partPattern = regexp.MustCompile(`^[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?$`)
	tagPattern  = regexp.MustCompile(`^[\w*][\w.*-]{0,127}$`)
)

// isHost is the rule by which references are read as well.
func isHost(first string) bool {
	return strings.ContainsAny(first, ".:") || first == "localhost" || strings.ToLower(first) != first
}

// String is the pattern as it was written.
func (p Pattern) String() string { return p.text }

// Whole says whether the pattern is for repositories with all that is in them.
func (p Pattern) Whole() bool { return p.tag == "" && p.digest == "" }

// Match says whether the pattern is for a reference.
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

// glob compares with "*" for any characters, in time that grows with the
// product of the lengths at most.
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

// List is an allow-list. The empty one has every reference in it.
type List []Pattern

// ParseList reads patterns.
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

// Has says whether a reference is in the list.
func (l List) Has(r Reference) bool {
	for _, p := range l {
		if p.Match(r) {
			return true
		}
	}
	return len(l) == 0
}

// String names the patterns, for messages.
func (l List) String() string {
	texts := make([]string, len(l))
	for i, p := range l {
		texts[i] = p.text
	}
	return clip(strings.Join(texts, ", "))
}
