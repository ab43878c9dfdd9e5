package argv

import (
	"strings"
)

// script checks an argument that is a sed or awk script.
func (c *checker) script(text string) *Refusal {
	var why string
	if c.program.Script == "sed" {
		why = sed(text)
	} else {
		why = awk(text)
	}
	if why == "" {
		return nil
	}
	return c.refuse(ClassArgument, "the %s script is refused: %s", c.name, why)
}

// awk returns why a script is refused, or "". It searches the whole text, including strings and
// regular expressions: awk may not treat a character as a quote where this package would.
func awk(text string) string {
	for _, w := range []struct{ word, why string }{
		{"system", "system() runs a program"},
		{"getline", "getline reads other files"},
		{"ARGV", "ARGV names other files"},
		{"ARGC", "ARGC names other files"},
		{"@", "@ loads a file or calls a function by name"},
		{"PROCINFO", "PROCINFO changes how awk runs"},
		{"\\\n", "a line continues on the next one"},
	} {
		if strings.Contains(text, w.word) {
			return w.why
		}
	}
	printed := false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '|':
			if i+1 < len(text) && text[i+1] == '|' {
				i++
				continue
			}
			return "| runs a program"
		case '>':
			if printed && (i+1 == len(text) || text[i+1] != '=') {
				return "print with > writes a file"
			}
		case 'p':
			printed = printed || strings.HasPrefix(text[i:], "print")
		}
	}
	return ""
}

// sed returns why a script is refused, or "". It parses the commands and refuses any that it does
// not understand.
func sed(text string) string {
	s := sedReader{text: text}
	for {
		s.space(" \t\n;")
		if s.done() {
			return ""
		}
		if !s.addresses() {
			return "an address is not supported"
		}
		if why := s.command(); why != "" {
			return why
		}
	}
}

type sedReader struct {
	text string
	at   int
}

func (s *sedReader) done() bool { return s.at >= len(s.text) }

func (s *sedReader) peek() byte {
	if s.done() {
		return 0
	}
	return s.text[s.at]
}

func (s *sedReader) space(set string) {
	for !s.done() && strings.IndexByte(set, s.text[s.at]) >= 0 {
		s.at++
	}
}

// until skips to after the next unquoted delimiter. A delimiter within [ ] is not supported,
// because sed implementations differ.
func (s *sedReader) until(delim byte) bool {
	bracket := false
	for ; !s.done(); s.at++ {
		switch s.text[s.at] {
		case '\\':
			s.at++
		case delim:
			s.at++
			return !bracket
		case '\n':
			return false
		case '[':
			bracket = true
		case ']':
			bracket = false
		}
	}
	return false
}

func (s *sedReader) addresses() bool {
	for n := 0; n < 2; n++ {
		switch c := s.peek(); {
		case c >= '0' && c <= '9', c == '$', n == 1 && (c == '+' || c == '~'):
			s.at++
			s.space("0123456789~")
		case c == '/', c == '\\':
			if c == '\\' {
				if s.at++; s.done() {
					return false
				}
			}
			delim := s.text[s.at]
			s.at++
			if delim == '\n' || delim == '\\' || !s.until(delim) {
				return false
			}
			s.space("IM")
		default:
			if n == 1 {
				return false
			}
		}
		s.space(" \t")
		if s.peek() != ',' || n == 1 {
			break
		}
		s.at++
		s.space(" \t")
	}
	s.space(" \t!")
	return true
}

// command parses one command and returns why it is refused, or "".
func (s *sedReader) command() string {
	c := s.peek()
	s.at++
	switch c {
	case '{', '}', '=', 'd', 'D', 'g', 'G', 'h', 'H', 'n', 'N', 'p', 'P', 'x', 'z', 'F':
		return s.end()
	case 'q', 'Q', 'l', 'L':
		s.space(" \t")
		s.space("0123456789")
		return s.end()
	case 'b', 't', 'T', ':':
		s.space(" \t")
		for !s.done() && isLabelByte(s.peek()) {
			s.at++
		}
		return s.end()
	case 's', 'y':
		return s.substitute(c)
	case 'a', 'i', 'c':
		// The text extends to the next unquoted end of line.
		for !s.done() && s.text[s.at] != '\n' {
			if s.text[s.at] == '\\' {
				s.at++
			}
			s.at++
		}
		return ""
	case '#':
		for !s.done() && s.text[s.at] != '\n' {
			s.at++
		}
		return ""
	case 'w', 'W':
		return "the command " + string(c) + " writes a file"
	case 'r', 'R':
		return "the command " + string(c) + " reads another file"
	case 'e':
		return "the command e runs a program"
	}
	return "a command is not supported"
}

func isLabelByte(c byte) bool {
	return c == '_' || c == '.' || c == '-' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

// end checks that nothing follows a command.
func (s *sedReader) end() string {
	s.space(" \t")
	switch s.peek() {
	case 0, '\n', ';', '}', '{', '#':
		return ""
	}
	if s.at > 0 && s.text[s.at-1] == '{' || s.text[s.at-1] == ' ' || s.text[s.at-1] == '\t' {
		// A command may follow "{" directly.
		if i := strings.TrimRight(s.text[:s.at], " \t"); strings.HasSuffix(i, "{") {
			return ""
		}
	}
	return "a command is not supported"
}

func (s *sedReader) substitute(c byte) string {
	if s.done() || s.peek() == '\n' || s.peek() == '\\' {
		return "a command is not supported"
	}
	delim := s.text[s.at]
	s.at++
	found := s.until(delim)
	if !found || !s.until(delim) {
		return "a command is not supported"
	}
	for c == 's' && !s.done() {
		switch f := s.peek(); {
		case f == 'e':
			return "the flag e of s runs a program"
		case f == 'w':
			return "the flag w of s writes a file"
		case strings.IndexByte("gpiImM0123456789", f) < 0:
			return s.end()
		}
		s.at++
	}
	return s.end()
}
