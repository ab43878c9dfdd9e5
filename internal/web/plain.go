package web

import (
	"strings"
	"unicode"
)

// Plain returns untrusted text as valid UTF-8 without control characters other than newlines and
// tabs: terminals interpret control characters.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
