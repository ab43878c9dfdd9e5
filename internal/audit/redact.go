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

// Redactor removes secrets from text: values that it knows, in the common encodings, and text that
// looks like a secret (tokens of common services, keys, passwords in commands, headers, URLs and
// JSON). It misses unknown secrets that match no pattern, and values that a program transformed or
// split.
//
// Values from [Redactor.Add] belong to the service and are hidden everywhere. Values from
// [Redactor.Own] belong to one caller. They are hidden only in that caller's records, and never
// from an approver.
//
// A marker such as "[redacted 24 bytes mac:1a2b3c4d5e6f]" replaces a secret. It shows the length
// and a keyed hash. The same secret of the same caller has the same hash. Secrets of two callers
// cannot be compared, and a guess cannot be checked without the key.
//
// Create one with NewRedactor; the zero value is not usable. All methods may be called
// concurrently. They take time linear in the text, whatever the text and the values are.
type Redactor struct {
	extra []*regexp.Regexp
	key   [sha256.Size]byte // key of the markers' hashes
	own   owners

	mu     sync.Mutex
	added  []string
	common atomic.Pointer[values] // compiled values of Add; nil after a change
}

// NewRedactor returns a redactor that also hides text that matches the patterns. Its markers use a
// random key until a log is opened with it.
func NewRedactor(patterns ...*regexp.Regexp) *Redactor {
	r := &Redactor{extra: patterns}
	_, _ = rand.Read(r.key[:]) // Read never fails
	return r
}

// useKey derives the key of the markers' hashes. No other method may run at the same time.
func (r *Redactor) useKey(key []byte) {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("orchestrator redaction markers, version 1"))
	mac.Sum(r.key[:0])
}

// Add hides a value of the service in all records and from approvers. It ignores surrounding white
// space and values under 6 bytes.
func (r *Redactor) Add(value string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.added = append(r.added, value)
	r.common.Store(nil)
}

// shared returns the compiled values of Add.
func (r *Redactor) shared() *values {
	if v := r.common.Load(); v != nil {
		return v
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v := compileValues(r.added)
	r.common.Store(v)
	return v
}

// ForApprover returns a call's input for an approver to read. It hides the service's values,
// matches of the configured patterns and tokens of well-known formats. Where the text announces a
// secret, it also hides words that look random: 8 bytes or more, with letters and digits and no
// character special to a shell. A caller cannot hide anything else.
func (r *Redactor) ForApprover(caller string, input json.RawMessage) json.RawMessage {
	v := view{redact: r, caller: caller, approver: true}
	return v.redactJSON(input)
}

// view redacts text of one caller. Only one goroutine may use it.
type view struct {
	redact   *Redactor
	caller   string
	own      []*values // of the caller
	approver bool
}

// record returns the view for records of a caller.
func (r *Redactor) record(caller string) view {
	return view{redact: r, caller: caller, own: r.own.valuesOf(caller)}
}

// withoutOwn returns v without the caller's values, for text that must stay readable.
func (v view) withoutOwn() view {
	v.own = nil
	return v
}

// span is a range of a text, from and to in bytes.
type span struct{ from, to int }

// find returns the sorted, disjoint spans of s that are secret.
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

// known appends the spans of s that hold known values.
func (v *view) known(spans []span, s string) []span {
	t := text{s: s}
	spans = v.redact.shared().find(spans, &t)
	for _, own := range v.own {
		spans = own.find(spans, &t)
	}
	return spans
}

// secret returns the spans of s to hide if its position marks it as a secret.
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

// macBytes is the length of a marker's hash. maxMarker bounds the length of a marker.
const macBytes, maxMarker = 6, 48

// appendMarker appends the marker for a secret. Its hash starts with the key. The hash is
// truncated, which prevents length extension.
func (v *view) appendMarker(dst []byte, secret string) []byte {
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

// appendRedacted appends s up to limit, with markers in place of the spans.
func (v *view) appendRedacted(dst []byte, s string, spans []span, limit int) []byte {
	at := 0
	for _, p := range spans {
		if p.from >= limit {
			break
		}
		dst = append(dst, s[at:p.from]...)
		dst = v.appendMarker(dst, s[p.from:p.to])
		at = p.to
	}
	if at < limit {
		dst = append(dst, s[at:min(limit, len(s))]...)
	}
	return dst
}

// redactText returns s without secrets.
func (v *view) redactText(s string) string {
	var few [8]span
	spans := v.find(few[:0], s)
	if len(spans) == 0 {
		return s
	}
	return string(v.appendRedacted(make([]byte, 0, len(s)+maxMarker/2*len(spans)), s, spans, len(s)))
}

// redactPrefix returns s without secrets, or a prefix that is not much longer than limit. It reads
// only as far past limit as a secret may need.
func (v *view) redactPrefix(s string, limit int) string {
	if len(s) <= limit {
		return v.redactText(s)
	}
	s = s[:min(len(s), limit+maxPattern)]
	return string(v.appendRedacted(nil, s, v.find(nil, s), limit+1))
}

// redactJSON returns raw without secrets: in strings, in numbers, in values of members with secret
// names, and in arguments after secret flags. It searches within single strings only, so valid JSON
// stays valid and keeps its members and elements. Invalid JSON is returned as a JSON string.
//
// The result is always valid UTF-8. json.Valid does not check that, but readers of an export
// require it.
func (v *view) redactJSON(raw json.RawMessage) json.RawMessage {
	if !json.Valid(raw) {
		return quote(v.redactText(string(raw)))
	}
	if !utf8.Valid(raw) {
		raw = bytes.ToValidUTF8(raw, []byte("\uFFFD"))
	}
	return v.walk(string(raw), len(raw))
}

// escapeLength is the length in bytes of the longest escape of a byte in JSON.
const escapeLength = len(`\u0000`)

// redactInput returns raw as a record stores it: redacted, and over MaxInput bytes truncated to a
// JSON string of its start. size and sum (SHA-256, hex) describe a truncated input. Past MaxInput,
// only the hash takes time.
func (v *view) redactInput(raw json.RawMessage) (out json.RawMessage, size int, sum string) {
	var text string
	if len(raw) <= MaxInput {
		out = v.redactJSON(raw)
		if len(out) <= MaxInput {
			return out, 0, ""
		}
		text = string(out)
	} else {
		// A secret that begins before the cut must be seen whole.
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

// quote returns s as a JSON string.
func quote(s string) []byte {
	b := make([]byte, 0, len(s)+2)
	return append(append(append(b, '"'), escapeJSON(s, false)...), '"')
}
