package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Redacted stands where a secret was.
const Redacted = "[redacted]"

// Redactor takes secrets out of text: the values that it was told, in every
// usual form, and what looks like one (tokens of common services, keys,
// passwords in commands, headers, addresses and JSON). What it is not told and
// what looks like nothing is not found, nor is a value that a program
// transformed in another way or that is cut in parts. The zero value is not
// usable: use NewRedactor. All methods may be called concurrently; text of
// normal length takes microseconds.
type Redactor struct {
	known values
	extra []*regexp.Regexp
}

// NewRedactor makes one that also hides what matches the patterns.
func NewRedactor(patterns ...*regexp.Regexp) *Redactor { return &Redactor{extra: patterns} }

// Add makes a value known: from now on it is not recorded. White space around
// it does not count, and what is shorter than 6 bytes is not looked for. It is
// forgotten after as many calls of Remove.
func (r *Redactor) Add(value string) { r.known.add(value) }

// Remove takes back one Add.
func (r *Redactor) Remove(value string) { r.known.remove(value) }

// span is a part of a text, from and to in bytes.
type span struct{ from, to int }

// find is the sorted, disjoint parts of s that are secret.
func (r *Redactor) find(spans []span, s string) []span {
	spans = r.known.find(spans, s)
	spans = findPatterns(spans, s)
	for _, re := range r.extra {
		for _, m := range re.FindAllStringIndex(s, -1) {
			spans = append(spans, span{m[0], m[1]})
		}
	}
	return merge(spans)
}

func merge(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	n := 0
	for _, p := range spans[1:] {
		if p.from < spans[n].to {
			spans[n].to = max(spans[n].to, p.to)
			continue
		}
		n++
		spans[n] = p
	}
	return spans[:n+1]
}

// appendRedacted adds s up to limit, without the parts that spans name.
func appendRedacted(dst []byte, s string, spans []span, limit int) []byte {
	at := 0
	for _, p := range spans {
		if p.from >= limit {
			break
		}
		dst = append(dst, s[at:p.from]...)
		dst = append(dst, Redacted...)
		at = p.to
	}
	if at < limit {
		dst = append(dst, s[at:min(limit, len(s))]...)
	}
	return dst
}

// Text is s without secrets.
func (r *Redactor) Text(s string) string {
	var few [8]span
	spans := r.find(few[:0], s)
	if len(spans) == 0 {
		return s
	}
	return string(appendRedacted(make([]byte, 0, len(s)), s, spans, len(s)))
}

// beginning is s without secrets, or a beginning of it that is not much longer
// than limit, of whose rest only so much is looked at as a secret may need.
func (r *Redactor) beginning(s string, limit int) string {
	if len(s) <= limit {
		return r.Text(s)
	}
	s = s[:min(len(s), limit+max(r.known.window(), maxPattern))]
	return string(appendRedacted(nil, s, r.find(nil, s), limit+1))
}

// JSON is raw without secrets: in strings, in the values of members whose
// names say that they are secret, and in the arguments behind such flags. Valid
// JSON stays valid; what is not valid comes back as a JSON string. It is valid
// UTF-8 in any case, which json.Valid does not ask for and readers of an export
// do.
func (r *Redactor) JSON(raw json.RawMessage) json.RawMessage {
	if !json.Valid(raw) {
		return r.seal(quote(r.Text(string(raw))))
	}
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	return r.seal(r.walk(string(raw), len(raw)))
}

// seal takes out known values that only come about between strings: of a
// secret that is itself JSON, or a number.
func (r *Redactor) seal(out []byte) json.RawMessage {
	for range 2 {
		s := string(out)
		spans := merge(r.known.find(nil, s))
		if len(spans) == 0 {
			return out
		}
		out = appendRedacted(nil, s, spans, len(s))
		if !json.Valid(out) {
			out = quote(string(out))
		}
	}
	if len(r.known.find(nil, string(out))) > 0 {
		return quote(Redacted)
	}
	return out
}

// Input is raw as a record holds it: redacted, and if that is over MaxInput
// bytes cut, as a JSON string of its beginning; then size and sum (SHA-256,
// hex) are those of the whole. The time it takes for more than that is that of
// the sum.
func (r *Redactor) Input(raw json.RawMessage) (out json.RawMessage, size int, sum string) {
	var text string
	if len(raw) <= MaxInput {
		out = r.JSON(raw)
		if len(out) <= MaxInput {
			return out, 0, ""
		}
		text = string(out)
	} else {
		// A value that begins before the cut is looked at whole.
		seen := min(len(raw), MaxInput+max(r.known.window(), maxPattern))
		text = string(r.walk(string(raw[:seen]), MaxInput))
	}
	whole := sha256.Sum256(raw)
	text = text[:min(len(text), MaxInput)]
	for {
		text = strings.ToValidUTF8(text, "")
		out = r.seal(quote(text))
		if len(out) <= MaxInput {
			return out, len(raw), hex.EncodeToString(whole[:])
		}
		text = text[:len(text)*MaxInput/len(out)-1]
	}
}

// quote makes a JSON string of s.
func quote(s string) []byte { return []byte(`"` + escapeJSON(s, false) + `"`) }
