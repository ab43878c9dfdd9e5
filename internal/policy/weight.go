package policy

import "strings"

// maxWeight bounds what the parser has to make nodes of: words and operators.
const maxWeight = 8000

// weight counts what may become a node in the parser's tree. As long as it knows
// for sure how the shell reads the text, quotes, comments and here-documents
// count for one each, so that a long file in one is no burden; behind the first
// thing that it does not follow everything counts.
func weight(s string) int {
	n, i := 0, 0
	sure, word := true, false
	for i < len(s) && n <= maxWeight {
		c := s[i]
		i++
		switch c {
		case ' ', '\t':
			word = false
			continue
		case '\'', '"':
			n++
			word = true
			if sure {
				i, sure = quotedEnd(s, i, c)
			}
			continue
		case '#':
			if sure && !word {
				if end := strings.IndexByte(s[i:], '\n'); end >= 0 {
					i += end
				} else {
					i = len(s)
				}
				continue
			}
		case '(', '`', '{':
			sure = false
		case '\\':
			if sure && i < len(s) {
				i++
			}
		case '<':
			if sure && strings.HasPrefix(s[i:], "<") {
				var inside int
				i, inside, sure = document(s, i+1)
				n += inside
			}
		}
		plain := c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80 || strings.IndexByte("_-./:,%@^]", c) >= 0
		if !plain || !word {
			n++
		}
		word = plain || word && strings.IndexByte("=+~*?[!$\\#", c) >= 0
	}
	return n
}

// quotedEnd goes behind a quoted text; it is not sure of "" with code in it.
func quotedEnd(s string, i int, quote byte) (int, bool) {
	end := strings.IndexByte(s[i:], quote)
	if end < 0 || quote == '"' && strings.ContainsAny(s[i:i+end], "$`\\") {
		return i, false
	}
	return i + end + 1, true
}

// document goes behind a here-document whose line is simple, and says what its
// text weighs.
func document(s string, i int) (next, inside int, sure bool) {
	line, _, more := strings.Cut(s[i:], "\n")
	mark := strings.TrimLeft(strings.TrimPrefix(line, "-"), " ")
	tabs := strings.HasPrefix(line, "-")
	quoted := strings.HasPrefix(mark, "'")
	if quoted {
		mark = mark[1:]
	}
	end := 0
	for end < len(mark) && (mark[end]|0x20 >= 'a' && mark[end]|0x20 <= 'z' || mark[end] == '_') {
		end++
	}
	rest := mark[end:]
	mark = mark[:end]
	if quoted && !strings.HasPrefix(rest, "'") || mark == "" || !more {
		return i, 0, false
	}
	if quoted {
		rest = rest[1:]
	}
	if strings.ContainsAny(rest, "<#'\"`$(){}\\") || rest != "" && strings.IndexByte(" |&;>", rest[0]) < 0 {
		return i, 0, false
	}
	at := i + len(line) + 1
	for at < len(s) {
		l, _, _ := strings.Cut(s[at:], "\n")
		is := l
		if tabs {
			is = strings.TrimLeft(l, "\t")
		}
		if is == mark {
			return at + len(l), inside + strings.Count(rest, " "), true
		}
		if !quoted {
			inside += 2 * (strings.Count(l, "$") + strings.Count(l, "`") + strings.Count(l, "\\"))
		}
		at += len(l) + 1
	}
	return i, 0, false
}
