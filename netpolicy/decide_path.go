package netpolicy

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// maxWantPath is the longest path that is compared with one of a rule.
const maxWantPath = 8 << 10

// path is one of a rule, cleaned.
type path struct {
	text   string // without the *
	prefix bool
}

func compilePath(s string) (path, error) {
	if len(s) > MaxPath {
		return path{}, errors.New("it is too long")
	}
	if !strings.HasPrefix(s, "/") {
		return path{}, errors.New(`a path begins with "/"`)
	}
	text, prefix := strings.CutSuffix(s, "*")
	if strings.Contains(text, "*") {
		return path{}, errors.New(`a * stands at the end alone ("/v1/*")`)
	}
	if strings.ContainsAny(text, "?#") {
		return path{}, errors.New("a query is not looked at: write the path alone")
	}
	text, err := cleanPath(text)
	return path{text: text, prefix: prefix}, err
}

// matches compares with a clean path. A rule that denies holds for what servers
// often take for the same: another case, and a slash at the end.
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

// cleanPath gives the one form of a path, without a query, in which it is
// compared: decoded. What a server between here and the file could read as
// another path is an error.
func cleanPath(s string) (string, error) {
	switch {
	case s == "":
		s = "/"
	case s[0] != '/':
		return "", errors.New("it does not begin with a slash")
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
			return "", errors.New("it has a part of dots alone")
		}
	}
	return s, nil
}

// unescape decodes a path. Its result stands for one path alone, since escapes
// that some servers decode at another time than others are refused.
func unescape(s string) (string, error) {
	var out []byte // once something was escaped
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
			return "", errors.New("it has characters that have to be escaped")
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
		return "", errors.New("its escapes are no UTF-8")
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
