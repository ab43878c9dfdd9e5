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

// minNeedle is the minimum length of a part of a credential that is masked separately. Shorter
// parts occur in any text.
const minNeedle = 6

// setSecrets adds the credentials of the decided host to a request, replacing the client's fields.
// It returns the mask for the answer, or nil if there are none.
func (f *flow) setSecrets(out *http.Request) *mask {
	s := f.s
	s.mu.Lock()
	for _, one := range s.secrets {
		if one.For(f.decision.Host) {
			f.usedSecrets = append(f.usedSecrets, one)
		}
	}
	s.mu.Unlock()
	var m *mask
	for _, one := range f.usedSecrets {
		if m == nil {
			m = &mask{}
		}
		m.add(one.Value)
		out.Header.Set(one.Header, one.Value)
		delete(out.Trailer, http.CanonicalHeaderKey(one.Header))
	}
	if m != nil {
		// A compressed answer could not be masked.
		out.Header.Set("Accept-Encoding", "identity")
	}
	return m
}

// mask overwrites credentials in an answer, because a server may echo what it received. It keeps
// the length of the text. It finds credentials only as they are, not compressed, encoded, or split
// over range requests. A nil mask changes nothing.
type mask struct {
	needles [][]byte
	held    []byte // the end of the received bytes, which may be the start of a credential
}

// add masks a value. If the value has a scheme, only its token is masked, which covers both. For
// Basic, it also masks the password.
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

// header masks names and values in place.
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

// name returns a field's name with credentials masked. It ignores case, because the parser changes
// the case of names.
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

// text returns s with credentials masked.
func (m *mask) text(s string) string {
	if m == nil {
		return s
	}
	for _, n := range m.needles {
		s = strings.ReplaceAll(s, string(n), strings.Repeat("*", len(n)))
	}
	return s
}

// errorText returns an error's text with credentials masked. Errors of net/http quote and escape
// what they did not understand.
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

// body returns the bytes that can be forwarded after b was received. It may change b. last means
// that no more bytes follow.
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
		keep = max(keep, partialMatch(b, n))
	}
	if last || keep == 0 {
		return b
	}
	m.held = bytes.Clone(b[len(b)-keep:])
	return b[:len(b)-keep]
}

// partialMatch returns the length of the longest end of b that is a proper start of n.
func partialMatch(b, n []byte) int {
	for l := min(len(b), len(n)-1); l > 0; l-- {
		if b[len(b)-l] == n[0] && bytes.HasSuffix(b, n[:l]) {
			return l
		}
	}
	return 0
}
