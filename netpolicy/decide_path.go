package netpolicy

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// maxWantPath is the length of the longest requested path that is compared with rules, in bytes.
const maxWantPath = 8 << 10

// path is a canonical path of a rule.
type path struct {
	text   string // without the final *
	prefix bool
}

func compilePath(s string) (path, error) {
	if len(s) > MaxPath {
		return path{}, errors.New("it is too long")
	}
	if !strings.HasPrefix(s, "/") {
		return path{}, errors.New(`it must start with "/"`)
	}
	text, prefix := strings.CutSuffix(s, "*")
	if strings.Contains(text, "*") {
		return path{}, errors.New(`it has a * before its end: use a prefix such as "/v1/*"`)
	}
	if strings.ContainsAny(text, "?#") {
		return path{}, errors.New("it has a query or fragment: write the path only")
	}
	text, err := cleanPath(text)
	return path{text: text, prefix: prefix}, err
}

// matches reports whether the path matches s, which is canonical. For a deny rule, it also matches
// what servers often treat as equal: another case, and a slash at the end.
func (p path) matches(s string, deny bool) bool {
	if !deny {
		return s == p.text || p.prefix && strings.HasPrefix(s, p.text)
	}
	switch {
	case len(s) < len(p.text) || !strings.EqualFold(s[:len(p.text)], p.text):
		return p.prefix && strings.EqualFold(s+"/", p.text)
	case p.prefix:
		return true
	}
	rest := s[len(p.text):]
	return rest == "" || rest == "/"
}

// cleanPath returns the canonical form of a path without a query, in which paths are compared:
// percent-decoded. It returns an error if another server could read the path differently.
func cleanPath(s string) (string, error) {
	switch {
	case s == "":
		s = "/"
	case s[0] != '/':
		return "", errors.New("it does not start with a slash")
	case len(s) > maxWantPath:
		return "", errors.New("it is too long")
	}
	s, err := unescape(s)
	if err != nil {
		return "", err
	}
	for rest, more := s[1:], true; more; {
		var part string
		part, rest, more = strings.Cut(rest, "/")
		switch {
		case part == "" && more:
			return "", errors.New("it has an empty part (//)")
		case part != "" && strings.Trim(part, ".") == "":
			return "", errors.New("it has a part that consists of dots")
		}
	}
	return s, nil
}

// unescape decodes a path. It refuses escapes that only some servers decode, so that the result
// represents one path only.
func unescape(s string) (string, error) {
	var out []byte // nil while nothing was escaped
	for i := 0; i < len(s); i++ {
		c, at := s[i], i
		escaped := c == '%'
		if escaped {
			if i+2 >= len(s) || unhex(s[i+1]) > 15 || unhex(s[i+2]) > 15 {
				return "", errors.New("it has a broken escape")
			}
			c = unhex(s[i+1])<<4 | unhex(s[i+2])
			i += 2
		}
		switch {
		case c < ' ' || c == 0x7f:
			return "", errors.New("it has control characters")
		case c == '\\' || c == ';':
			return "", errors.New("it has a backslash or a semicolon")
		case escaped && (c == '/' || c == '%'):
			return "", errors.New("it has an escaped slash or percent sign")
		case !escaped && (c == ' ' || c == '?' || c == '#' || c >= 0x80):
			return "", errors.New("it has characters that must be escaped")
		}
		if escaped && out == nil {
			out = append(make([]byte, 0, len(s)), s[:at]...)
		}
		if out != nil {
			out = append(out, c)
		}
	}
	switch {
	case out == nil:
		return s, nil
	case !utf8.Valid(out):
		return "", errors.New("its escapes are not valid UTF-8")
	}
	return string(out), nil
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}
