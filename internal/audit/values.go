package audit

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"math/bits"
	"math/rand/v2"
	"net/url"
	"slices"
	"strings"
	"sync"
)

const (
	// minValue is the minimum length of a value, in bytes. Shorter ones would match everywhere.
	minValue = 6
	// maxForm is the maximum length of a text that is searched for, in bytes. Longer forms of a
	// value are split into pieces of this length.
	maxForm = maxPattern
	// fewTexts and fewBytes bound a group whose texts are compared one by one.
	fewTexts, fewBytes = 4, 1 << 10
)

// values is an immutable set of secret values in all their encodings. The search time depends only
// on the length of the text. Each position costs one filter lookup; if its first bytes match, at
// most a binary search over the known lengths follows.
type values struct {
	filter []uint64 // one bit per hash of the first minValue bytes
	shift  uint
	groups map[uint64]*group // by the first minValue bytes
}

// group holds the texts that share their first minValue bytes.
type group struct {
	few     []string // longest first; nil if there are too many
	lengths []int32  // ascending
	// known maps the hash of every text, and of the prefixes that a search for it probes, to the
	// length of the longest text that is a prefix of the hashed one.
	known map[uint64]int32
}

// compileValues returns the set of the given values. It skips values under minValue bytes.
func compileValues(list []string) *values {
	texts := map[uint64][]string{}
	for _, value := range list {
		if value = strings.TrimSpace(value); len(value) < minValue {
			continue
		}
		for _, form := range encodedForms(value) {
			for piece := range pieces(form) {
				k := prefix(piece)
				texts[k] = append(texts[k], piece)
			}
		}
	}
	v := &values{groups: make(map[uint64]*group, len(texts))}
	size := max(10, bits.Len(uint(len(texts)))+4) // at most one bit in eight is set
	v.filter, v.shift = make([]uint64, 1<<size/64), uint(64-size)
	for k, all := range texts {
		slot := filterBit(k, v.shift)
		v.filter[slot/64] |= 1 << (slot % 64)
		slices.Sort(all)
		v.groups[k] = newGroup(slices.Compact(all))
	}
	return v
}

// pieces yields parts of s, at most maxForm bytes each, that together cover it.
func pieces(s string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for ; len(s) > 2*maxForm; s = s[maxForm:] {
			if !yield(s[:maxForm]) {
				return
			}
		}
		if len(s) > maxForm {
			if !yield(s[:maxForm]) {
				return
			}
			s = s[len(s)-maxForm:]
		}
		yield(s)
	}
}

// newGroup returns a group of the given sorted, distinct texts.
func newGroup(texts []string) *group {
	total := 0
	for _, t := range texts {
		total += len(t)
	}
	if len(texts) <= fewTexts && total <= fewBytes {
		few := slices.Clone(texts)
		slices.SortFunc(few, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
		return &group{few: few}
	}
	g := &group{known: make(map[uint64]int32, 2*len(texts))}
	for _, t := range texts {
		g.lengths = append(g.lengths, int32(len(t)))
	}
	slices.Sort(g.lengths)
	g.lengths = slices.Compact(g.lengths)
	var begun []string // texts that are prefixes of the current one, shortest first
	for _, t := range texts {
		for len(begun) > 0 && !strings.HasPrefix(t, begun[len(begun)-1]) {
			begun = begun[:len(begun)-1]
		}
		begun = append(begun, t)
		g.mark(t, begun)
	}
	return g
}

// mark adds the prefixes of t that a search for t probes.
func (g *group) mark(t string, begun []string) {
	var h sum
	from := 0
	for low, high := 0, len(g.lengths)-1; low <= high; {
		mid := (low + high) / 2
		n := int(g.lengths[mid])
		if n > len(t) {
			high = mid - 1
			continue
		}
		low = mid + 1
		h, from = h.add(t[from:n]), n
		i, _ := slices.BinarySearchFunc(begun, n+1, func(b string, n int) int { return cmp.Compare(len(b), n) })
		best := int32(0)
		if i > 0 {
			best = int32(len(begun[i-1]))
		}
		g.known[uint64(h)] = best
	}
}

// longest returns the length of the group's longest text that t has at i, or 0.
func (g *group) longest(t *text, i int) int {
	if g.few != nil {
		for _, f := range g.few {
			if strings.HasPrefix(t.s[i:], f) {
				return len(f)
			}
		}
		return 0
	}
	best := int32(0)
	for low, high := 0, len(g.lengths)-1; low <= high; {
		mid := (low + high) / 2
		n := int(g.lengths[mid])
		if i+n <= len(t.s) {
			if b, ok := g.known[t.sum(i, i+n)]; ok {
				best, low = max(best, b), mid+1
				continue
			}
		}
		high = mid - 1
	}
	return int(best)
}

// find appends the spans of t that hold a value. The spans may overlap.
func (v *values) find(spans []span, t *text) []span {
	if len(v.groups) == 0 || len(t.s) < minValue {
		return spans
	}
	s := t.s
	k := prefix(s) << 8
	for i := 0; i+minValue <= len(s); i++ {
		k = k>>8 | uint64(s[i+minValue-1])<<40
		slot := filterBit(k, v.shift)
		if v.filter[slot/64]&(1<<(slot%64)) == 0 {
			continue
		}
		g := v.groups[k]
		if g == nil {
			continue
		}
		if n := g.longest(t, i); n > 0 {
			spans = append(spans, span{i, i + n})
		}
	}
	return spans
}

func prefix(s string) uint64 {
	_ = s[minValue-1]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 | uint64(s[4])<<32 | uint64(s[5])<<40
}

// filterBit is a multiplicative hash (by the golden ratio) to 64-shift bits.
func filterBit(k uint64, shift uint) uint64 { return k * 0x9E3779B97F4A7C15 >> shift }

// text is a text under search, with lazily computed hashes of its prefixes.
type text struct {
	s    string
	sums []sum
}

// sum returns the hash of s[i:j].
func (t *text) sum(i, j int) uint64 {
	if t.sums == nil {
		t.sums = make([]sum, len(t.s)+1)
		for i := range len(t.s) {
			t.sums[i+1] = t.sums[i].add(t.s[i : i+1])
		}
	}
	return reduce(uint64(t.sums[j]) + prime - times(uint64(t.sums[i]), basePowers()[j-i]))
}

// sum is a polynomial hash modulo prime. Each process picks a random base, so that callers cannot
// construct collisions. The chance of a collision is under 1 in 2^40 per text.
type sum uint64

func (h sum) add(s string) sum {
	for i := range len(s) {
		h = sum(reduce(times(uint64(h), base) + uint64(s[i]) + 1))
	}
	return h
}

const prime = 1<<61 - 1

//nolint:gochecknoglobals // constant within a process
var base = 1<<32 + rand.Uint64N(prime-1<<32)

// basePowers returns the powers of base up to maxForm.
var basePowers = sync.OnceValue(func() []uint64 {
	p := make([]uint64, maxForm+1)
	p[0] = 1
	for i := range maxForm {
		p[i+1] = times(p[i], base)
	}
	return p
})

func times(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return reduce(low&prime + (low>>61 | high<<3))
}

func reduce(n uint64) uint64 {
	if n = n&prime + n>>61; n >= prime {
		n -= prime
	}
	return n
}

// encodedForms returns the forms in which a value may be written: as it is, JSON-escaped (once and
// twice, in both styles), URL-encoded, in hex, and in base64 at each of its three alignments.
func encodedForms(value string) []string {
	once, onceHTML := escapeJSON(value, false), escapeJSON(value, true)
	all := make([]string, 0, 19)
	all = append(all, value, once, onceHTML, escapeJSON(once, false), escapeJSON(onceHTML, true),
		hex.EncodeToString([]byte(value)), strings.ToUpper(hex.EncodeToString([]byte(value))))
	query := url.QueryEscape(value)
	for _, s := range []string{query, strings.ReplaceAll(query, "+", "%20"), url.PathEscape(value)} {
		all = append(all, s, lowerEscapes(s))
	}
	for offset := range 3 {
		padded := append(make([]byte, offset), value...)
		skip := []int{0, 2, 3}[offset] // characters with bits of what precedes
		whole := len(padded) * 8 / 6   // characters without bits of what follows
		for _, e := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			all = append(all, e.EncodeToString(padded)[skip:whole])
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s string) bool { return len(s) < minValue })
}

// escapeJSON returns s as the inside of a JSON string.
func escapeJSON(s string, html bool) string {
	if !needsEscape(s) {
		return s
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	_ = enc.Encode(s) // strings always encode
	return strings.TrimSuffix(b.String()[1:], "\"\n")
}

// needsEscape reports whether s may differ from its JSON form in some style.
func needsEscape(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c < ' ', c >= 0x7f, c == '"', c == '\\', c == '<', c == '>', c == '&':
			return true
		}
	}
	return false
}

// lowerEscapes rewrites %2F as %2f.
func lowerEscapes(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b := []byte(s)
	for i := 0; i+2 < len(b); i++ {
		if b[i] == '%' {
			copy(b[i:], bytes.ToLower(b[i:i+3]))
		}
	}
	return string(b)
}
