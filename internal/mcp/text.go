package mcp

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// quote shows foreign text on one line: what cannot be seen, or changes how
// the rest is seen, is written as an escape. At most limit runes of it.
func quote(s string, limit int) string {
	cut, whole := bound(s, limit)
	q := strconv.QuoteToGraphic(strings.ToValidUTF8(cut, "\uFFFD"))
	if !whole {
		q += "…"
	}
	return q
}

// plain is foreign text without anything that cannot be seen, at most limit
// runes.
func plain(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsGraphic(r) || r == utf8.RuneError:
			return -1
		}
		return r
	}, s)
	cut, whole := bound(s, limit)
	if !whole {
		cut += "…"
	}
	return cut
}

// bound cuts s after limit runes and says whether that was all.
func bound(s string, limit int) (string, bool) {
	n := 0
	for i := range s {
		if n == limit {
			return s[:i], false
		}
		n++
	}
	return s, true
}
