// Package clip makes untrusted bytes valid text, and shortens it for messages and records. It
// depends only on the standard library and keeps no state.
package clip

import (
	"strings"
	"unicode/utf8"
)

// Message returns s as valid UTF-8 for an error message, at most 200 bytes and an ellipsis.
func Message(s string) string { return Text(s, 200) }

// Text returns s as valid UTF-8. If s has more than n bytes, it returns the whole characters of the
// first n bytes and an ellipsis.
func Text(s string, n int) string {
	if len(s) > n {
		s = Bytes(s, n) + "…"
	}
	return Valid(s)
}

// Elide returns s. If s has more than n bytes, it returns the valid UTF-8 of the first n bytes and
// an ellipsis.
func Elide(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// Bytes returns the whole characters in the first n bytes of s.
func Bytes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// Runes returns the first n characters of s, and whether it dropped any.
func Runes(s string, n int) (text string, cut bool) {
	if len(s) <= n {
		return s, false
	}
	for i := range s {
		if n == 0 {
			return s[:i], true
		}
		n--
	}
	return s, false
}
