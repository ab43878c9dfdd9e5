package files

import (
	"bytes"
	"regexp/syntax"
	"unicode/utf8"
)

// needle is text that every match of an expression contains. Searching for it first is about twenty
// times as fast as running the expression on each line.
type needle struct {
	text []byte // lower case if fold is set; empty if unknown
	fold bool   // ASCII, and case does not matter
}

// newNeedle returns the longest needle that is easy to find.
func newNeedle(re *syntax.Regexp) needle {
	switch re.Op {
	case syntax.OpLiteral:
		return literal(re.Rune, re.Flags&syntax.FoldCase != 0)
	case syntax.OpCapture, syntax.OpPlus:
		return newNeedle(re.Sub[0])
	case syntax.OpRepeat:
		if re.Min > 0 {
			return newNeedle(re.Sub[0])
		}
	case syntax.OpConcat:
		var best needle
		for _, sub := range re.Sub {
			if n := newNeedle(sub); len(n.text) > len(best.text) {
				best = n
			}
		}
		return best
	default:
	}
	return needle{}
}

// literal returns the longest part of a literal that matches exactly these bytes. With fold, k and
// s also match letters outside ASCII, and U+FFFD matches any invalid byte.
func literal(runes []rune, fold bool) needle {
	var best, run []byte
	for _, r := range runes {
		if fold && 'A' <= r && r <= 'Z' {
			r += 'a' - 'A'
		}
		if r == utf8.RuneError || fold && (r >= utf8.RuneSelf || r == 'k' || r == 's') {
			run = run[:0:0]
			continue
		}
		if run = utf8.AppendRune(run, r); len(run) > len(best) {
			best = run
		}
	}
	return needle{text: bytes.Clone(best), fold: fold}
}

// in reports whether the line may match.
func (n *needle) in(line []byte) bool {
	if len(n.text) == 0 {
		return true
	}
	if !n.fold {
		return bytes.Contains(line, n.text)
	}
	for i := 0; i+len(n.text) <= len(line); i++ {
		if lower(line[i]) == n.text[0] && n.at(line[i:]) {
			return true
		}
	}
	return false
}

func (n *needle) at(b []byte) bool {
	for i, c := range n.text {
		if lower(b[i]) != c {
			return false
		}
	}
	return true
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c += 'a' - 'A'
	}
	return c
}
