package mcp

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
)

// quote returns untrusted text as one quoted line of at most limit runes. Invisible characters, and
// those that change the display of others, are escaped.
func quote(s string, limit int) string {
	text, cut := clip.Runes(s, limit)
	q := strconv.QuoteToGraphic(strings.ToValidUTF8(text, "\uFFFD"))
	if cut {
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
	s, cut := clip.Runes(s, limit)
	if cut {
		s += "…"
	}
	return s
}
