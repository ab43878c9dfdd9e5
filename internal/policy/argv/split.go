package argv

import (
	"errors"
	"strings"
)

// Errors of Split. The texts are those of Python's shlex, which clients match.
var (
	ErrQuotation = errors.New("No closing quotation") // text of shlex
	ErrEscape    = errors.New("No escaped character") // text of shlex
)

// Split splits a line into words at blanks, with the quotes and backslashes of a POSIX shell.
// Variables, globs and operators have no meaning.
func Split(line string) ([]string, error) {
	var words []string
	var cur strings.Builder
	in := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t', '\r', '\n':
			if in {
				words = append(words, cur.String())
				cur.Reset()
				in = false
			}
		case '\'':
			end := strings.IndexByte(line[i+1:], '\'')
			if end < 0 {
				return nil, ErrQuotation
			}
			in = true
			cur.WriteString(line[i+1 : i+1+end])
			i += 1 + end
		case '"':
			n, err := splitDoubleQuoted(line[i+1:], &cur)
			if err != nil {
				return nil, err
			}
			in = true
			i += n
		case '\\':
			if i++; i == len(line) {
				return nil, ErrEscape
			}
			in = true
			cur.WriteByte(line[i])
		default:
			in = true
			cur.WriteByte(c)
		}
	}
	if in {
		words = append(words, cur.String())
	}
	return words, nil
}

// double copies text up to the closing double quote and returns its length.
func splitDoubleQuoted(s string, to *strings.Builder) (int, error) {
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return i + 1, nil
		case c == '\\' && i+1 == len(s):
			return 0, ErrEscape
		case c == '\\' && (s[i+1] == '"' || s[i+1] == '\\'):
			i++
			to.WriteByte(s[i])
		default:
			to.WriteByte(c)
		}
	}
	return 0, ErrQuotation
}
