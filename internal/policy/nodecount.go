package policy

import "strings"

// maxNodes bounds the syntax nodes that the parser may have to create.
const maxNodes = 8000

// countNodes returns an upper bound of the nodes that parsing s creates, or more than maxNodes.
// While it understands the quoting, a quoted text, a comment or a here-document counts once, so
// that long files in them are cheap. After the first construct that it does not follow, every
// character may count.
func countNodes(s string) int {
	n, i := 0, 0
	sure, word := true, false
	for i < len(s) && n <= maxNodes {
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
				i, sure = skipQuoted(s, i, c)
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
				i, inside, sure = skipHeredoc(s, i+1)
				n += inside
			}
		}
		plain := c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80 ||
			strings.IndexByte("_-./:,%@^]", c) >= 0
		if !plain || !word {
			n++
		}
		word = plain || word && strings.IndexByte("=+~*?[!$\\#", c) >= 0
	}
	return n
}

// skipQuoted returns the position after a quoted text. The bool is false if "" contains code.
func skipQuoted(s string, i int, quote byte) (int, bool) {
	end := strings.IndexByte(s[i:], quote)
	if end < 0 || quote == '"' && strings.ContainsAny(s[i:i+end], "$`\\") {
		return i, false
	}
	return i + end + 1, true
}

// skipHeredoc returns the position after a here-document that has a simple first line, and the
// number of nodes inside. sure is false for all others.
func skipHeredoc(s string, i int) (next, inside int, sure bool) {
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
