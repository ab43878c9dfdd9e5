package build

import (
	"regexp"
	"strings"
	"unicode"
)

// instruction is one instruction of a Dockerfile. Its lines are joined as the engine does: a line
// break may be inside any word.
type instruction struct {
	at    int    // index of its first line, from 0
	first string // its first line
	text  string // all lines joined
	long  bool   // has more than one line
}

// instructions splits a Dockerfile in the way engines do. Text that engine versions read
// differently is an error: the engine could download a base that this package does not see.
func instructions(lines []string) ([]instruction, error) {
	escape, err := escapeOf(lines)
	if err != nil {
		return nil, err
	}
	var out []instruction
	going := false
	for i, full := range lines {
		line := strings.TrimSuffix(full, "\r")
		if bare := strings.TrimLeftFunc(line, unicode.IsSpace); bare == "" || bare[0] == '#' {
			continue // also skipped inside an instruction
		}
		if strings.Contains(line, "\r") {
			return nil, bad("line %d: carriage return inside the line", i+1)
		}
		text, more := strings.CutSuffix(strings.TrimRight(line, " \t"), escape)
		switch {
		case more && strings.HasSuffix(text, escape):
			return nil, bad("line %d: engines differ on a line that ends in %s: do not end it with two",
				i+1, escape+escape)
		case !more:
			text = line
		}
		if going {
			last := &out[len(out)-1]
			last.text, last.long = last.text+text, true
		} else {
			out = append(out, instruction{at: i, first: line, text: text})
		}
		going = more
	}
	return out, nil
}

var (
	escapeLine = regexp.MustCompile("(?i)^#[ \t]*escape[ \t]*=[ \t]*([\\\\`])[ \t]*$")
	syntaxLine = regexp.MustCompile(`(?i)^#[ \t]*syntax[ \t]*=[ \t]*\S`)
)

// escapeOf returns the line continuation character. Engines differ in which comments may precede
// the escape directive; here only the syntax directive may.
func escapeOf(lines []string) (string, error) {
	escape, told := `\`, true
	for i, full := range lines {
		line := strings.TrimSuffix(full, "\r")
		bare := strings.TrimLeftFunc(line, unicode.IsSpace)
		if !strings.HasPrefix(bare, "#") {
			break
		}
		said := strings.ToLower(strings.Join(strings.Fields(bare[1:]), ""))
		if strings.HasPrefix(said, "escape=") {
			m := escapeLine.FindStringSubmatch(line)
			if m == nil || !told {
				return "", bad("line %d: invalid \"# escape=`\": put it first or after \"# syntax=\", with ` or \\",
					i+1)
			}
			escape = m[1]
		}
		told = told && syntaxLine.MatchString(line)
	}
	return escape, nil
}

var blanks = regexp.MustCompile(`[\t\v\f\r ]+`)

// word returns the first word of an instruction in upper case, and the rest.
func word(text string) (first, rest string) {
	parts := blanks.Split(strings.TrimSpace(text), 2)
	if len(parts) == 2 {
		rest = parts[1]
	}
	return strings.ToUpper(parts[0]), rest
}

var heredoc = regexp.MustCompile(`^[0-9]*<<-?[^<]`)

// hasHeredoc reports whether some engine versions would read the following lines as a
// here-document.
func hasHeredoc(rest string) bool {
	for _, w := range strings.Fields(rest) {
		if heredoc.MatchString(w) {
			return true
		}
	}
	return false
}

// unquoted returns s without quotes and escape characters.
func unquoted(s string) string {
	return strings.NewReplacer(`"`, "", `'`, "", `\`, "", "`", "").Replace(s)
}

// takesMount reports whether RUN has a mount, which can be of an image.
func takesMount(rest string) bool {
	for _, w := range strings.Fields(unquoted(rest)) {
		switch {
		case strings.HasPrefix(w, "--mount"):
			return true
		case !strings.HasPrefix(w, "--"):
			return false
		}
	}
	return false
}
