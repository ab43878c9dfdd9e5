package build

import (
	"regexp"
	"strings"
	"unicode"
)

// instruction is one of a Dockerfile, with its lines joined as the engine joins
// them: what an instruction says can be cut at any character.
type instruction struct {
	at    int    // its first line, from 0
	first string // that line
	text  string // all of them
	long  bool   // there is more than one
}

// instructions reads a Dockerfile as the engine does. What engines read in more
// than one way is an error: a base that only one of us sees would be fetched by
// the engine.
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
			continue // also within an instruction
		}
		if strings.Contains(line, "\r") {
			return nil, bad("line %d: it has a carriage return before its end", i+1)
		}
		text, more := strings.CutSuffix(strings.TrimRight(line, " \t"), escape)
		switch {
		case more && strings.HasSuffix(text, escape):
			return nil, bad("line %d: engines do not agree whether it goes on after %s: leave no two at its end", i+1, escape+escape)
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

// escapeOf is the character that has a line go on. Engines differ in what may
// stand before the line that says so: here that is a line about the syntax.
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
				return "", bad("line %d: \"# escape=`\" has to be the first line, or to come after \"# syntax=\", and names ` or \\", i+1)
			}
			escape = m[1]
		}
		told = told && syntaxLine.MatchString(line)
	}
	return escape, nil
}

var blanks = regexp.MustCompile(`[\t\v\f\r ]+`)

// word is an instruction's first one in capitals, and what comes after it.
func word(text string) (first, rest string) {
	parts := blanks.Split(strings.TrimSpace(text), 2)
	if len(parts) == 2 {
		rest = parts[1]
	}
	return strings.ToUpper(parts[0]), rest
}

var heredoc = regexp.MustCompile(`^[0-9]*<<-?[^<]`)

// hasHeredoc says whether the lines that follow may be a text of the
// instruction: engines of some versions read them so.
func hasHeredoc(rest string) bool {
	for _, w := range strings.Fields(rest) {
		if heredoc.MatchString(w) {
			return true
		}
	}
	return false
}

// unquoted is a text without what takes the meaning from other characters.
func unquoted(s string) string {
	return strings.NewReplacer(`"`, "", `'`, "", `\`, "", "`", "").Replace(s)
}

// takesMount says whether RUN has a mount, which can be of an image.
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
