package policy

import (
	"errors"
	"strings"
)

// Text that is not fully known contains marks. A mark is a control character that stands for
// unknown text; the same characters in a command are replaced first.
const (
	anyText = '\x00' // any text, such as a variable that the command does not set
	anyName = '\x01' // an unquoted *: any text without a slash
	anyByte = '\x02' // an unquoted ? or [...]: one character
)

const marks = "\x00\x01\x02"

// answer reports whether a condition holds.
type answer uint8

const (
	no answer = iota
	maybe
	yes
)

func and(a, b answer) answer { return min(a, b) }

// known reports whether s contains no marks.
func known(s string) bool { return !strings.ContainsAny(s, marks) }

// certain reports whether s contains no anyText. It may contain globs.
func certain(s string) bool { return strings.IndexByte(s, anyText) < 0 }

// token is an element of a glob.
type token struct {
	// kind is 'c' for a character, '?' for any but a slash, '*' for any text without a slash, '+'
	// ("**") for any text, and '[' for a class.
	kind byte
	c    byte
	neg  bool
	set  []byte // class: pairs of first and last character
}

// glob is a compiled pattern: * and ? stop at slashes, ** does not, and \ quotes.
type glob struct {
	text   string
	plain  bool // has no wildcard and matches only text
	tokens []token
}

func newGlob(s string) (glob, error) {
	g := glob{plain: true}
	var plain strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\\':
			if i++; i == len(s) {
				return glob{}, errors.New("ends in a backslash")
			}
			g.tokens = append(g.tokens, token{kind: 'c', c: s[i]})
			plain.WriteByte(s[i])
		case '?':
			g.plain = false
			g.tokens = append(g.tokens, token{kind: '?'})
		case '*':
			g.plain = false
			kind := byte('*')
			for i+1 < len(s) && s[i+1] == '*' {
				i, kind = i+1, '+'
			}
			g.tokens = append(g.tokens, token{kind: kind})
		case '[':
			t, n, err := class(s[i:])
			if err != nil {
				return glob{}, err
			}
			g.plain = false
			g.tokens = append(g.tokens, t)
			i += n - 1
		default:
			if c <= anyByte {
				return glob{}, errors.New("holds a control character")
			}
			g.tokens = append(g.tokens, token{kind: 'c', c: c})
			plain.WriteByte(c)
		}
	}
	g.text = plain.String()
	return g, nil
}

// class parses a class such as "[a-z]" at the start of s and returns its length.
func class(s string) (token, int, error) {
	t := token{kind: '['}
	i := 1
	if i < len(s) && (s[i] == '!' || s[i] == '^') {
		t.neg = true
		i++
	}
	for first := true; i < len(s); first = false {
		if s[i] == ']' && !first {
			return t, i + 1, nil
		}
		lo, hi := s[i], s[i]
		i++
		if i+1 < len(s) && s[i] == '-' && s[i+1] != ']' {
			hi = s[i+1]
			i += 2
		}
		t.set = append(t.set, lo, hi)
	}
	return token{}, 0, errors.New("has an unclosed [")
}

func (t *token) has(c byte) bool {
	switch t.kind {
	case 'c':
		return t.c == c
	case '?':
		return c != '/'
	}
	in := false
	for i := 0; i < len(t.set); i += 2 {
		in = in || (t.set[i] <= c && c <= t.set[i+1])
	}
	return in != t.neg && c != '/'
}

// match reports whether the glob matches s. If s has marks, the answer is yes only if the glob
// matches every text that s may stand for.
func (g *glob) match(s string) answer {
	if g.plain && g.text == s {
		return yes
	}
	if g.covers(s) {
		return yes
	}
	if known(s) || !g.mayMatch(s) {
		return no
	}
	return maybe
}

// covers reports whether the glob matches all that s may stand for. A mark matches wildcards that
// are at least as wide, and a glob in the command matches itself.
func (g *glob) covers(s string) bool { return g.matchesPrefix(s) && g.walk(s, false) }

// matchesPrefix compares s with the characters before the first wildcard: most globs fail here.
func (g *glob) matchesPrefix(s string) bool {
	for i := range g.tokens {
		if g.tokens[i].kind != 'c' {
			return true
		}
		if i == len(s) || s[i] > anyByte && s[i] != g.tokens[i].c {
			return false
		}
	}
	return len(s) == len(g.tokens)
}

// mayMatch reports whether the glob matches a text that s may stand for.
func (g *glob) mayMatch(s string) bool { return g.walk(s, true) }

// walk matches s with a set of states. If free is true, a mark stands for any text that it allows.
func (g *glob) walk(s string, free bool) bool {
	n := len(g.tokens)
	var small [2][64]bool
	cur, next := small[0][:], small[1][:]
	if n >= len(cur) {
		cur, next = make([]bool, n+1), make([]bool, n+1)
	}
	cur[0] = true
	g.addEmptyMatches(cur)
	for i := 0; i < len(s); i++ {
		c := s[i]
		clear(next)
		for t := 0; t <= n; t++ {
			if !cur[t] {
				continue
			}
			if free && (c == anyText || c == anyName) {
				// The mark may stand for text that matches any number of tokens.
				for u := t; ; u++ {
					next[u] = true
					if u == n || c == anyName && g.tokens[u].kind == 'c' && g.tokens[u].c == '/' {
						break
					}
				}
				continue
			}
			if t == n {
				continue
			}
			tk := &g.tokens[t]
			switch tk.kind {
			case '+':
				next[t] = true
			case '*':
				if c != '/' && c != anyText {
					next[t] = true
				}
			default:
				next[t+1] = next[t+1] || tk.fits(c, free)
			}
		}
		g.addEmptyMatches(next)
		cur, next = next, cur
	}
	return cur[n]
}

// fits reports whether a token matches the character c, which may be a mark.
func (t *token) fits(c byte, free bool) bool {
	switch {
	case c > anyByte:
		return t.has(c)
	case c == anyByte && free:
		return t.kind != 'c' || t.c != '/'
	case c == anyByte:
		return t.kind == '?' || t.kind == 'c' && t.c == '?'
	}
	return c == anyName && t.kind == 'c' && t.c == '*'
}

// addEmptyMatches adds the states reached by wildcards that match the empty text.
func (g *glob) addEmptyMatches(states []bool) {
	for t := range g.tokens {
		if states[t] && (g.tokens[t].kind == '*' || g.tokens[t].kind == '+') {
			states[t+1] = true
		}
	}
}

// globs is a list of alternatives.
type globs []glob

func (gs globs) match(s string) answer {
	best := no
	for i := range gs {
		if best = max(best, gs[i].match(s)); best == yes {
			break
		}
	}
	return best
}
