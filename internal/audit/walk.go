package audit

import (
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// walker makes one pass over JSON text without building a tree. Text without secrets stays
// unchanged, byte for byte. The text may end in the middle of a value.
type walker struct {
	view *view
	raw  string
	stop int
	out  []byte

	depth    int
	secretIn int  // depth of the container whose values are secret, or 0
	secret   bool // the next value is secret
}

// walk redacts JSON text and emits it up to stop.
func (v *view) walk(raw string, stop int) []byte {
	w := &walker{view: v, raw: raw, stop: stop, out: make([]byte, 0, stop+64)}
	for i := 0; i < stop; {
		i = w.token(i)
	}
	return w.out
}

// token handles the token at i and returns the start of the next.
func (w *walker) token(i int) int {
	switch c := w.raw[i]; c {
	case '"':
		return w.text(i)
	case '{', '[':
		w.depth++
		if w.secret && w.secretIn == 0 {
			w.secretIn = w.depth
		}
		w.secret = false
	case '}', ']':
		if w.depth == w.secretIn {
			w.secretIn = 0
		}
		w.depth--
		w.secret = false
	case ' ', '\t', '\n', '\r', ',', ':':
	default:
		return w.scalar(i)
	}
	w.out = append(w.out, w.raw[i])
	return i + 1
}

// scalar handles a number or a word.
func (w *walker) scalar(i int) int {
	end := i + 1
	for end < len(w.raw) && !strings.ContainsRune(" \t\r\n,:{}[]\"", rune(w.raw[end])) {
		end++
	}
	if word := w.raw[i:end]; w.hidesNumber(word) {
		w.out = append(w.view.appendMarker(append(w.out, '"'), word), '"')
	} else {
		w.out = append(w.out, w.raw[i:min(end, w.stop)]...)
	}
	w.secret = false
	return end
}

// hidesNumber reports whether to replace a number with a string. An approver sees every number that
// does not hold a value of the service.
func (w *walker) hidesNumber(word string) bool {
	if word[0] != '-' && !isDigit(word[0]) {
		return false
	}
	if (w.secret || w.secretIn > 0) && !w.view.approver {
		return true
	}
	var few [8]span
	return len(w.view.known(few[:0], word)) > 0
}

// text handles a string: a member name or a value.
func (w *walker) text(i int) int {
	end, closed := stringEnd(w.raw, i)
	content := w.raw[i+1 : end]
	if closed {
		content = w.raw[i+1 : end-1]
	}
	next := byte(0)
	for j := end; j < len(w.raw); j++ {
		if next = w.raw[j]; next != ' ' && next != '\t' && next != '\n' && next != '\r' {
			break
		}
	}
	v := value{content: content, plain: content, limit: w.stop - i - 1}
	v.plainLimit = v.limit
	if strings.IndexByte(content, '\\') >= 0 {
		v.escaped = true
		v.plain, v.plainLimit = unescape(content, v.limit)
	}
	var few [8]span
	w.out = append(w.out, '"')
	switch {
	case next == ':':
		w.value(v, w.view.find(few[:0], v.plain))
		w.secret = isSecretName(v.plain)
	case (w.secret || w.secretIn > 0) && v.plain != "":
		w.value(v, w.view.secret(few[:0], v.plain))
		w.secret = false
	default:
		w.value(v, w.view.find(few[:0], v.plain))
		w.secret = next == ',' && isSecretFlag(v.plain)
	}
	w.out = append(w.out, '"')
	return end
}

// value is the inside of a string, encoded and decoded, and how much of each to emit.
type value struct {
	content, plain    string
	limit, plainLimit int
	escaped           bool
}

// value emits a string without the given spans of its decoded form.
func (w *walker) value(v value, spans []span) {
	switch {
	case len(spans) == 0:
		w.out = append(w.out, v.content[:min(len(v.content), v.limit)]...)
	case v.escaped:
		w.out = append(w.out, escapeJSON(string(w.view.appendRedacted(nil, v.plain, spans, v.plainLimit)), false)...)
	default:
		w.out = w.view.appendRedacted(w.out, v.plain, spans, v.plainLimit)
	}
}

// stringEnd returns the index after the closing quote of the string that starts at i, or the end of
// the text if it is not closed.
func stringEnd(s string, i int) (end int, closed bool) {
	for i++; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return i + 1, true
		}
	}
	return len(s), false
}

// unescape decodes the inside of a JSON string as far as possible. It maps limit, an offset in s,
// to an offset in the result.
func unescape(s string, limit int) (string, int) {
	b := make([]byte, 0, len(s))
	at := -1
	for i := 0; i < len(s); {
		if i >= limit && at < 0 {
			at = len(b)
		}
		if s[i] != '\\' || i+1 == len(s) {
			b = append(b, s[i])
			i++
			continue
		}
		var n int
		b, n = appendEscape(b, s[i:])
		i += n
	}
	if at < 0 {
		at = len(b)
	}
	return string(b), at
}

// appendEscape decodes the escape at the start of s. n is its length in bytes.
func appendEscape(b []byte, s string) (_ []byte, n int) {
	if i := strings.IndexByte("bfnrt", s[1]); i >= 0 {
		return append(b, "\b\f\n\r\t"[i]), 2
	}
	if s[1] != 'u' {
		return append(b, s[1]), 2
	}
	r, ok := hex4(s)
	if !ok {
		return append(b, s[1]), 2
	}
	if utf16.IsSurrogate(r) {
		if low, ok := hex4(s[6:]); ok {
			if pair := utf16.DecodeRune(r, low); pair != utf8.RuneError {
				return utf8.AppendRune(b, pair), 12
			}
		}
	}
	return utf8.AppendRune(b, r), 6
}

// hex4 reads "\uXXXX".
func hex4(s string) (rune, bool) {
	if len(s) < 6 || s[0] != '\\' || s[1] != 'u' {
		return 0, false
	}
	var r rune
	for _, c := range []byte(s[2:6]) {
		switch {
		case isDigit(c):
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
