package netpolicy

import (
	"bytes"
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// minNeedle is how long a part of a credential has to be to be looked for by
// itself: what is shorter stands in any text.
const minNeedle = 6

// setSecrets puts the credentials for a decided host into a request, in place of
// whatever came from inside. The mask takes them out of the answer; nil if there
// are none.
func (f *flow) setSecrets(out *http.Request) *mask {
	s := f.s
	s.mu.Lock()
	for _, one := range s.secrets {
		if one.For(f.decision.Host) {
			f.given = append(f.given, one)
		}
	}
	s.mu.Unlock()
	var m *mask
	for _, one := range f.given {
		if m == nil {
			m = &mask{}
		}
		m.add(one.Value)
		out.Header.Set(one.Header, one.Value)
		delete(out.Trailer, http.CanonicalHeaderKey(one.Header))
	}
	if m != nil {
		// What is packed cannot be looked into.
		out.Header.Set("Accept-Encoding", "identity")
	}
	return m
}

// mask overwrites credentials in an answer, for a server may echo what it was
// sent. What is overwritten keeps its length. A nil mask changes nothing. It
// finds them as they are: not packed, encoded, or in parts by ranges.
type mask struct {
	needles [][]byte
	held    []byte // the end of what came, which may be a credential's beginning
}

// add has a value looked for, or the token in it alone: whoever finds that has
// found the whole. Of Basic it is the user and password too.
func (m *mask) add(value string) {
	scheme, token, ok := strings.Cut(value, " ")
	if !ok || len(token) < minNeedle {
		m.needles = append(m.needles, []byte(value))
		return
	}
	m.needles = append(m.needles, []byte(token))
	if plain, err := base64.StdEncoding.DecodeString(token); err == nil && strings.EqualFold(scheme, "Basic") {
		if _, password, ok := bytes.Cut(plain, []byte(":")); ok && len(password) >= minNeedle {
			m.needles = append(m.needles, password)
		}
	}
}

// header changes names and values in place.
func (m *mask) header(h http.Header) {
	if m == nil {
		return
	}
	for _, field := range slices.Sorted(maps.Keys(h)) {
		values := h[field]
		for i, v := range values {
			values[i] = m.text(v)
		}
		if name := m.name(field); name != field {
			delete(h, field)
			h[name] = append(h[name], values...)
		}
	}
}

// name is a field's name without them. Case does not count: the parser changes
// that of names.
func (m *mask) name(s string) string {
	if m == nil {
		return s
	}
	b := []byte(s)
	for _, n := range m.needles {
		for i := 0; i+len(n) <= len(b); i++ {
			if bytes.EqualFold(b[i:i+len(n)], n) {
				copy(b[i:], bytes.Repeat([]byte("*"), len(n)))
			}
		}
	}
	return string(b)
}

// text is s without them.
func (m *mask) text(s string) string {
	if m == nil {
		return s
	}
	for _, n := range m.needles {
		s = strings.ReplaceAll(s, string(n), strings.Repeat("*", len(n)))
	}
	return s
}

// errorText is an error's text without them. An error of net/http quotes what
// it did not understand, and escapes it.
func (m *mask) errorText(s string) string {
	if m == nil {
		return s
	}
	for _, n := range m.needles {
		quoted := strconv.Quote(string(n))
		s = strings.ReplaceAll(s, quoted[1:len(quoted)-1], strings.Repeat("*", len(n)))
	}
	return m.text(s)
}

// body gives what can be sent on after b came, which it may change; last: no
// more will come.
func (m *mask) body(b []byte, last bool) []byte {
	if m == nil {
		return b
	}
	if len(m.held) > 0 {
		b = append(m.held, b...)
		m.held = nil
	}
	keep := 0
	for _, n := range m.needles {
		for at := 0; ; at += len(n) {
			i := bytes.Index(b[at:], n)
			if i < 0 {
				break
			}
			at += i
			for j := range n {
				b[at+j] = '*'
			}
		}
		keep = max(keep, begun(b, n))
	}
	if last || keep == 0 {
		return b
	}
	m.held = bytes.Clone(b[len(b)-keep:])
	return b[:len(b)-keep]
}

// begun is how long an end of b is the beginning of n.
func begun(b, n []byte) int {
	for l := min(len(b), len(n)-1); l > 0; l-- {
		if b[len(b)-l] == n[0] && bytes.HasSuffix(b, n[:l]) {
			return l
		}
	}
	return 0
}
