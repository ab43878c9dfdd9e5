package argv

import (
	"strings"
)

// script looks at a program in sed or awk that stands among the arguments.
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

// awk says why a script is refused. It looks for words and characters anywhere,
// in strings and regular expressions too: what looks like a quote to us may be
// none to awk.
func awk(text string) string {
	for _, w := range []struct{ word, why string }{
		{"system", "system() runs a program"},
		{"getline", "getline reads other files"},
		{"ARGV", "ARGV names other files"},
		{"ARGC", "ARGC names other files"},
		{"@", "@ loads or calls what is not in the script"},
		{"PROCINFO", "PROCINFO changes how awk runs"},
		{"\\\n", "a line goes on in the next one"},
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

// sed says why a script is refused: it reads the commands, and what it does not
// understand is refused.
func sed(text string) string {
	s := sedReader{text: text}
	for {
		s.space(" \t\n;")
		if s.done() {
			return ""
		}
		if !s.addresses() {
			return "an address of it is not understood"
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

// until goes past the next delimiter that no backslash quotes. A delimiter
// within [ ] means different things to different seds: it is not understood.
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

// command reads one command and says why it is refused.
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
		for !s.done() && label(s.peek()) {
			s.at++
		}
		return s.end()
	case 's', 'y':
		return s.substitute(c)
	case 'a', 'i', 'c':
		// The text goes on to a line end that no backslash quotes.
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
	return "a command of it is not understood"
}

func label(c byte) bool {
	return c == '_' || c == '.' || c == '-' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

// end wants nothing more of a command.
func (s *sedReader) end() string {
	s.space(" \t")
	switch s.peek() {
	case 0, '\n', ';', '}', '{', '#':
		return ""
	}
	if s.at > 0 && s.text[s.at-1] == '{' || s.text[s.at-1] == ' ' || s.text[s.at-1] == '\t' {
		// After "{" a command may follow at once.
		if i := strings.TrimRight(s.text[:s.at], " \t"); strings.HasSuffix(i, "{") {
			return ""
		}
	}
	return "a command of it is not understood"
}

func (s *sedReader) substitute(c byte) string {
	if s.done() || s.peek() == '\n' || s.peek() == '\\' {
		return "a command of it is not understood"
	}
	delim := s.text[s.at]
	s.at++
	found := s.until(delim)
	if !found || !s.until(delim) {
		return "a command of it is not understood"
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
