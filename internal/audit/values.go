package audit

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"
)

// minValue is the length below which a secret's value is not looked for, in
// bytes: it would be found in everything.
const minValue = 6

// values are the known secrets, in all their forms. Each position of a text
// costs one look into a small table of hashes of the forms' first bytes, so
// the time does not depend on how many there are, and one is added or removed
// without touching the others.
type values struct {
	mu      sync.RWMutex
	refs    map[string]int
	forms   map[uint64][]form // by their first minValue bytes
	filter  [1 << 16]uint32   // how many forms have this hash of them
	longest int               // of all forms that ever were
}

type form struct {
	text string
	refs int
}

func prefix(s string) uint64 {
	_ = s[minValue-1]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40
}

// slot is a multiplicative hash (by the golden ratio) to 16 bits.
func slot(k uint64) uint64 { return k * 0x9E3779B97F4A7C15 >> 48 }

func (v *values) add(value string) {
	value = strings.TrimSpace(value)
	if len(value) < minValue {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refs == nil {
		v.refs, v.forms = map[string]int{}, map[uint64][]form{}
	}
	v.refs[value]++
	if v.refs[value] > 1 {
		return
	}
	for _, f := range forms(value) {
		k := prefix(f)
		i := slices.IndexFunc(v.forms[k], func(x form) bool { return x.text == f })
		if i >= 0 {
			v.forms[k][i].refs++
			continue
		}
		v.forms[k] = append(v.forms[k], form{f, 1})
		v.filter[slot(k)]++
		v.longest = max(v.longest, len(f))
	}
}

func (v *values) remove(value string) {
	value = strings.TrimSpace(value)
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.refs[value] == 0 {
		return
	}
	v.refs[value]--
	if v.refs[value] > 0 {
		return
	}
	delete(v.refs, value)
	for _, f := range forms(value) {
		k := prefix(f)
		i := slices.IndexFunc(v.forms[k], func(x form) bool { return x.text == f })
		v.forms[k][i].refs--
		if v.forms[k][i].refs > 0 {
			continue
		}
		v.filter[slot(k)]--
		if v.forms[k] = slices.Delete(v.forms[k], i, i+1); len(v.forms[k]) == 0 {
			delete(v.forms, k)
		}
	}
}

// find adds where in s a value is. Spans may overlap.
func (v *values) find(spans []span, s string) []span {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if len(v.forms) == 0 {
		return spans
	}
	for i := 0; i+minValue <= len(s); i++ {
		k := prefix(s[i:])
		if v.filter[slot(k)] == 0 {
			continue
		}
		best := 0
		for _, f := range v.forms[k] {
			if len(f.text) > best && strings.HasPrefix(s[i:], f.text) {
				best = len(f.text)
			}
		}
		if best > 0 {
			spans = append(spans, span{i, i + best})
		}
	}
	return spans
}

func (v *values) window() int {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.longest
}

// forms are the ways in which a value is written: as it is, escaped for JSON
// (once and twice, in both styles), for URLs, in hex, and in base64 at each of
// the three places at which it can begin in a larger whole.
func forms(value string) []string {
	once, onceHTML := escapeJSON(value, false), escapeJSON(value, true)
	all := []string{
		value, once, onceHTML, escapeJSON(once, false), escapeJSON(onceHTML, true),
		hex.EncodeToString([]byte(value)), strings.ToUpper(hex.EncodeToString([]byte(value))),
	}
	query := url.QueryEscape(value)
	for _, s := range []string{query, strings.ReplaceAll(query, "+", "%20"), url.PathEscape(value)} {
		all = append(all, s, lowerEscapes(s))
	}
	for offset := range 3 {
		padded := append(make([]byte, offset), value...)
		skip := []int{0, 2, 3}[offset] // characters that hold bits of what is before
		whole := len(padded) * 8 / 6   // characters that hold no bits of what is behind
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, e.EncodeToString(padded)[skip:whole])
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s string) bool { return len(s) < minValue })
}

// escapeJSON is s as the inside of a JSON string.
func escapeJSON(s string, html bool) string {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	_ = enc.Encode(s) // a string is always encoded
	return strings.TrimSuffix(b.String()[1:], "\"\n")
}

// lowerEscapes writes %2F as %2f.
func lowerEscapes(s string) string {
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:], bytes.ToLower(b[i:i+3]))
		}
	}
	return string(b)
}
