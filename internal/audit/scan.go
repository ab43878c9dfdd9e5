package audit

import (
	"strings"
	"sync"
)

// scan is one search of a text. It remembers how far each kind of lookahead read, so that the
// search takes time linear in the text.
type scan struct {
	s    string
	ends [maxPatterns]int // end of each pattern's last match
	runs [classes]reach
	word reach
	line reach
}

// reach is a lookahead that started at from and read up to at.
type reach struct {
	from, at int
	stopped  bool // found what it looked for
}

// begin continues the lookahead at i, or restarts it there.
func (r *reach) begin(i int) {
	if i < r.from || i > r.at {
		*r = reach{from: i, at: i}
	}
}

// scans is a pool of unused scans.
var scans = sync.Pool{New: func() any { return new(scan) }}

// findPatterns appends the spans of s that look like a secret. With plainOnly, it returns the
// matches of patterns that are not plain separately, as wide.
func findPatterns(spans []span, s string, plainOnly bool) (_, wide []span) {
	var t *scan // most texts need none
	for i := 0; i < len(s); i++ {
		f := patternIndex[s[i]]
		if f == nil || f.second != nil && (i+1 == len(s) || !f.second[s[i+1]]) {
			continue
		}
		for at := range f.patterns {
			p := &f.patterns[at]
			if !p.begins(s[i:]) || p.word && i > 0 && isWord(s[i-1]) {
				continue
			}
			if t == nil {
				t, _ = scans.Get().(*scan)
				*t = scan{s: s}
			}
			if p.once && i < t.ends[p.id] {
				continue
			}
			found, ok := p.find(t, i)
			if !ok {
				continue
			}
			t.ends[p.id] = found.to
			if plainOnly && !p.plain {
				wide = append(wide, found)
			} else {
				spans = append(spans, found)
			}
		}
	}
	if t != nil {
		t.s = ""
		scans.Put(t)
	}
	return spans, wide
}

// begins reports whether s starts with the pattern's prefix. The caller has checked the first byte.
func (p *pattern) begins(s string) bool {
	n := len(p.begin)
	if len(s) < n {
		return false
	}
	return s[:n] == p.begin || p.fold && strings.EqualFold(s[:n], p.begin)
}

// class is a set of bytes.
type class struct {
	has [256]bool
	id  int
}

func classOf(id int, s string) *class {
	c := &class{id: id}
	for i := 0; i < len(s); i++ {
		if i+2 < len(s) && s[i+1] == '-' {
			for b := int(s[i]); b <= int(s[i+2]); b++ {
				c.has[b] = true
			}
			i += 2
			continue
		}
		c.has[s[i]] = true
	}
	return c
}

const classes = 7

var (
	upperChars      = classOf(0, "A-Z0-9")
	alnumChars      = classOf(1, "A-Za-z0-9")
	nameChars       = classOf(2, "A-Za-z0-9_-")
	dottedChars     = classOf(3, "A-Za-z0-9_.-")
	pathChars       = classOf(4, "A-Za-z0-9_/-")
	credentialChars = classOf(5, "A-Za-z0-9_.~+/=-")
	// opaqueChars holds the bytes without a special meaning in a shell word.
	opaqueChars = classOf(6, "A-Za-z0-9_.~+/=:@%^,-")
)

func isWord(c byte) bool { return alnumChars.has[c] || c == '_' }

// classEnd returns the end of the bytes of class c that start at i.
func (t *scan) classEnd(i int, c *class) int {
	r := &t.runs[c.id]
	r.begin(i)
	for r.at < len(t.s) && c.has[t.s[r.at]] {
		r.at++
	}
	return r.at
}

// minOpaque is the minimum length of a random-looking word, in bytes. Shorter ones are taken for
// natural language.
const minOpaque = 8

// appendOpaque appends the words in the spans that look random: they start with a letter or digit
// and contain both. The spans are sorted and disjoint.
func appendOpaque(spans []span, s string, wide []span) []span {
	for _, w := range wide {
		for i := w.from; i < w.to; i++ {
			from := i
			letters, digits := false, false
			for ; i < w.to && opaqueChars.has[s[i]]; i++ {
				letters = letters || s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z'
				digits = digits || isDigit(s[i])
			}
			if i-from >= minOpaque && letters && digits && alnumChars.has[s[from]] {
				spans = append(spans, span{from, i})
			}
		}
	}
	return spans
}

func (t *scan) lineEnd(i int) int {
	r := &t.line
	r.begin(i)
	end := i + min(len(t.s)-i, maxPattern)
	for ; !r.stopped && r.at < end; r.at++ {
		switch t.s[r.at] {
		case '"', '\'', '\r', '\n', '\\', '`':
			r.stopped = true
			return r.at
		}
	}
	return min(r.at, end)
}

func skipSpaces(s string, i int) int {
	for end := min(len(s), i+32); i < end && (s[i] == ' ' || s[i] == '\t'); i++ {
	}
	return i
}

// valueAt returns the value that starts at i, without its quotes. It ends at the same quote, or
// where a shell word ends.
func (t *scan) valueAt(i int) (from, to int) {
	s := t.s
	escapes := 0
	for i+escapes < len(s) && escapes < 4 && s[i+escapes] == '\\' {
		escapes++
	}
	if q := i + escapes; q < len(s) && (s[q] == '"' || s[q] == '\'' || s[q] == '`') {
		from = q + 1
		if to = quoteEnd(s, from, s[q], escapes); to >= 0 {
			return from, to
		}
		return from, t.wordEnd(from)
	}
	return i, t.wordEnd(i)
}

// quoteEnd returns the index of the next quote q that is escaped n times, or -1.
func quoteEnd(s string, i int, q byte, n int) int {
	end := min(len(s), i+maxPattern)
	slashes := 0
	for ; i < end; i++ {
		switch {
		case s[i] == '\\':
			slashes++
			continue
		case s[i] == q && (slashes <= n || q == '\''):
			return i - min(slashes, n)
		}
		slashes = 0
	}
	return -1
}

// wordEnd returns the end of the shell word that starts at i. No backslash precedes i.
func (t *scan) wordEnd(i int) int {
	r := &t.word
	r.begin(i)
	end := i + min(len(t.s)-i, maxPattern)
	for !r.stopped && r.at < end {
		switch t.s[r.at] {
		case ' ', '\t', '\r', '\n', '"', '\'', '`', ';', '&', '|', '<', '>', ')', '}':
			r.stopped = true
		case '\\':
			if next := r.at + 1; next < len(t.s) && (t.s[next] == '"' || t.s[next] == '\'') {
				r.stopped = true
			} else {
				r.at += 2
			}
		default:
			r.at++
		}
	}
	return min(r.at, end)
}
