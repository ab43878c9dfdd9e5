package mcp

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// quote returns untrusted text as one quoted line of at most limit runes. Invisible characters, and
// those that change the display of others, are escaped.
func quote(s string, limit int) string {
	cut, whole := cutRunes(s, limit)
	q := strconv.QuoteToGraphic(strings.ToValidUTF8(cut, "\uFFFD"))
	if !whole {
		q += "…"
	}
	return q
}

// plain returns untrusted text without invisible characters, at most limit runes.
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
	cut, whole := cutRunes(s, limit)
	if !whole {
		cut += "…"
	}
	return cut
}

// cutRunes cuts s after limit runes. It reports whether s was complete.
func cutRunes(s string, limit int) (string, bool) {
	n := 0
	for i := range s {
		if n == limit {
			return s[:i], false
		}
		n++
	}
	return s, true
}
