package web

import (
	"strings"
	"unicode"
)

// Plain is a foreign text without control characters but for line feeds and
// tabs: they are no text, and terminals obey them. It is valid UTF-8.
func Plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\n' && r != '\t' {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\uFFFD"))
}
