package audit

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"
)

// Redactor takes secrets out of text: values that it knows, in every usual form, and what looks
// like one (tokens of common services, keys, passwords in commands, headers, addresses and JSON).
// It misses secrets that it does not know and that look like nothing, and values that a program
// transformed in another way or cut in parts.
//
// Values of [Redactor.Add] are the service's: they are hidden everywhere. Values of
// [Redactor.Own] belong to one caller: they are hidden in records of that caller alone, and never
// from an approver.
//
// A marker stands in place of a secret: its length and a keyed hash, such as
// "[redacted 24 bytes mac:1a2b3c4d5e6f]". The same secret of the same caller has the same hash.
// Secrets of two callers cannot be compared, and without the key no guess can be checked.
//
// The zero value is not usable: use NewRedactor. All methods may be called concurrently. They take
// time linear in the text, whatever the text and the values are.
type Redactor struct {
	extra []*regexp.Regexp
	key   [sha256.Size]byte // of the markers' hashes
	own   owners

	mu     sync.Mutex
	added  []string
	common atomic.Pointer[values] // of added; nil after a change
}

// NewRedactor returns a redactor that also hides text that matches the patterns. The hashes of its
// markers have a key of their own until a log is opened with it.
func NewRedactor(patterns ...*regexp.Regexp) *Redactor {
	r := &Redactor{extra: patterns}
	_, _ = rand.Read(r.key[:]) // it never fails
	return r
}

// useKey derives the key of the markers' hashes. Nothing else may use r meanwhile.
func (r *Redactor) useKey(key []byte) {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("orchestrator redaction markers, version 1"))
	mac.Sum(r.key[:0])
}

// Add hides a value of the service's in all records and from approvers. White space around it does
// not count. A value shorter than 6 bytes is not looked for.
func (r *Redactor) Add(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added = append(r.added, value)
	r.common.Store(nil)
}

// shared returns the values of Add.
func (r *Redactor) shared() *values {
	if v := r.common.Load(); v != nil {
		return v
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := compile(r.added)
	r.common.Store(v)
	return v
}

// ForApprover returns a call's input as an approver reads it. It hides the service's values,
// matches of the configured patterns, tokens of well-known forms, and where the text says that a
// secret follows, words that look random: 8 bytes or more with letters and digits, and nothing that
// means something to a shell. Nothing else that a caller writes hides anything.
func (r *Redactor) ForApprover(caller string, input json.RawMessage) json.RawMessage {
	v := view{redact: r, caller: caller, approver: true}
	return v.json(input)
}

// view is how a redactor shows text of one caller. It is used by one goroutine.
type view struct {
	redact   *Redactor
	caller   string
	own      []*values // of the caller
	approver bool
}

// record returns the view for records of a caller.
func (r *Redactor) record(caller string) view {
	return view{redact: r, caller: caller, own: r.own.of(caller)}
}

// names is v without the caller's values: for what must stay readable whatever they are.
func (v view) names() view {
	v.own = nil
	return v
}

// span is a part of a text, from and to in bytes.
type span struct{ from, to int }

// find is the sorted, disjoint parts of s that are secret.
func (v *view) find(spans []span, s string) []span {
	if s == "" {
		return spans
	}
	spans = v.known(spans, s)
	var wide []span
	spans, wide = findPatterns(spans, s, v.approver)
	if len(wide) > 0 {
		spans = appendOpaque(spans, s, merge(wide))
	}
	for _, re := range v.redact.extra {
		for _, m := range re.FindAllStringIndex(s, -1) {
			spans = append(spans, span{m[0], m[1]})
		}
	}
	return merge(spans)
}

// known appends where s holds known values.
func (v *view) known(spans []span, s string) []span {
	t := text{s: s}
	spans = v.redact.shared().find(spans, &t)
	for _, own := range v.own {
		spans = own.find(spans, &t)
	}
	return spans
}

// secret is the parts of s that are hidden if its place says that it is secret.
func (v *view) secret(spans []span, s string) []span {
	whole := span{0, len(s)}
	if !v.approver {
		return append(spans, whole)
	}
	return merge(appendOpaque(v.find(spans, s), s, []span{whole}))
}

func merge(spans []span) []span {
	if len(spans) < 2 {
		return spans
	}
	slices.SortFunc(spans, func(a, b span) int { return a.from - b.from })
	n := 0
	for _, p := range spans[1:] {
		if p.from <= spans[n].to {
			spans[n].to = max(spans[n].to, p.to)
			continue
		}
		n++
		spans[n] = p
	}
	return spans[:n+1]
}

// macBytes is the length of a marker's hash, maxMarker bounds that of a marker.
const macBytes, maxMarker = 6, 48

// mark appends the marker for a secret. Its hash begins with the key. It is cut, so nobody can
// extend it to that of a longer secret.
func (v *view) mark(dst []byte, secret string) []byte {
	var buf [256]byte
	b := append(buf[:0], v.redact.key[:]...)
	b = append(append(b, v.caller...), 0)
	sum := sha256.Sum256(append(b, secret...))
	dst = append(dst, "[redacted "...)
	dst = strconv.AppendInt(dst, int64(len(secret)), 10)
	dst = append(dst, " bytes mac:"...)
	dst = hex.AppendEncode(dst, sum[:macBytes])
	return append(dst, ']')
}

// hide appends s up to limit, with markers in place of the spans.
func (v *view) hide(dst []byte, s string, spans []span, limit int) []byte {
	at := 0
	for _, p := range spans {
		if p.from >= limit {
			break
		}
		dst = append(dst, s[at:p.from]...)
		dst = v.mark(dst, s[p.from:p.to])
		at = p.to
	}
	if at < limit {
		dst = append(dst, s[at:min(limit, len(s))]...)
	}
	return dst
}

// text is s without secrets.
func (v *view) text(s string) string {
	var few [8]span
	spans := v.find(few[:0], s)
	if len(spans) == 0 {
		return s
	}
	return string(v.hide(make([]byte, 0, len(s)+maxMarker/2*len(spans)), s, spans, len(s)))
}

// beginning is s without secrets, or a beginning of it that is not much longer
// than limit, of whose rest only so much is looked at as a secret may need.
func (v *view) beginning(s string, limit int) string {
	if len(s) <= limit {
		return v.text(s)
	}
	s = s[:min(len(s), limit+maxPattern)]
	return string(v.hide(nil, s, v.find(nil, s), limit+1))
}

// json is raw without secrets: in strings, in numbers, in the values of members
// whose names say that they are secret, and in the arguments behind such flags. A secret is looked
// for within one string, never across the syntax around it: valid JSON stays valid, and keeps its
// members and elements. Invalid JSON comes back as a JSON string. The result is
// valid UTF-8 in any case, which json.Valid does not ask for and readers of an
// export do.
func (v *view) json(raw json.RawMessage) json.RawMessage {
	if !json.Valid(raw) {
		return quote(v.text(string(raw)))
	}
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	return v.walk(string(raw), len(raw))
}

// escapeLength is the length in bytes of the longest escape of a byte in JSON.
const escapeLength = len(`\u0000`)

// input is raw as a record holds it: redacted, and if that is over MaxInput
// bytes cut, as a JSON string of its beginning; then size and sum (SHA-256,
// hex) are those of the whole. The time it takes for more than that is that of
// the sum.
func (v *view) input(raw json.RawMessage) (out json.RawMessage, size int, sum string) {
	var text string
	if len(raw) <= MaxInput {
		out = v.json(raw)
		if len(out) <= MaxInput {
			return out, 0, ""
		}
		text = string(out)
	} else {
		// A secret that begins before the cut is looked at whole.
		seen := min(len(raw), MaxInput+escapeLength*maxPattern)
		text = string(v.walk(string(raw[:seen]), MaxInput))
	}
	whole := sha256.Sum256(raw)
	text = text[:min(len(text), MaxInput)]
	for {
		text = strings.ToValidUTF8(text, "")
		out = quote(text)
		if len(out) <= MaxInput {
			return out, len(raw), hex.EncodeToString(whole[:])
		}
		text = text[:len(text)*MaxInput/len(out)-1]
	}
}

// quote makes a JSON string of s.
func quote(s string) []byte {
	b := make([]byte, 0, len(s)+2)
	return append(append(append(b, '"'), escapeJSON(s, false)...), '"')
}
