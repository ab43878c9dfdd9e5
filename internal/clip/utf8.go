package clip

import (
	"strings"
	"unicode/utf8"
)

// Valid returns s as valid UTF-8. It replaces each maximal part of an invalid character with
// U+FFFD, as the Unicode Standard recommends (section 3.9), and as Python's errors="replace" and
// Rust's from_utf8_lossy do. strings.ToValidUTF8 replaces a whole run of invalid bytes at once, and
// a range loop each byte.
func Valid(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	b.Grow(len(s) + len("\uFFFD"))
	for len(s) > 0 {
		n, ok := character(s)
		if ok {
			b.WriteString(s[:n])
		} else {
			b.WriteString("\uFFFD")
		}
		s = s[n:]
	}
	return b.String()
}

// Count returns the number of characters of Valid(b).
func Count(b []byte) int {
	if utf8.Valid(b) {
		return utf8.RuneCount(b)
	}
	total := 0
	for s := string(b); len(s) > 0; total++ {
		n, _ := character(s)
		s = s[n:]
	}
	return total
}

// character returns the length of the first character of s, which is not empty. If it is invalid,
// character returns the length of its longest part that a valid character can begin with, or 1.
func character(s string) (n int, ok bool) {
	r, n := utf8.DecodeRuneInString(s)
	if r != utf8.RuneError || n > 1 {
		return n, true
	}
	first, low, high := s[0], byte(0x80), byte(0xBF)
	length := 0
	switch {
	case first >= 0xC2 && first <= 0xDF:
		length = 2
	case first >= 0xE0 && first <= 0xEF:
		length = 3
	case first >= 0xF0 && first <= 0xF4:
		length = 4
	}
	switch first { // these exclude overlong forms, surrogates and what is above U+10FFFF
	case 0xE0:
		low = 0xA0
	case 0xED:
		high = 0x9F
	case 0xF0:
		low = 0x90
	case 0xF4:
		high = 0x8F
	}
	for n < length && n < len(s) && s[n] >= low && s[n] <= high {
		low, high = 0x80, 0xBF
		n++
	}
	return n, false
}
