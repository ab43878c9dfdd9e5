package passages

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Split splits a Markdown text into non-empty passages with their headings.
func Split(markdown string) []Passage {
	s := splitter{}
	if len(markdown) > MaxText {
		markdown = markdown[:MaxText]
	}
	for line := range strings.Lines(strings.ToValidUTF8(markdown, "")) {
		s.line(strings.TrimRight(line, " \t\r\n"))
	}
	s.paragraph()
	s.flush()
	return s.list
}

// splitter processes a text line by line.
type splitter struct {
	list     []Passage
	headings [6]string
	block    []string // lines of the current paragraph
	text     strings.Builder
	fence    string // fence that closes the current code block, or ""
}

func (s *splitter) line(line string) {
	mark := strings.TrimLeft(line, " ")
	switch {
	case s.fence != "":
		s.block = append(s.block, line)
		if strings.HasPrefix(mark, s.fence) && strings.Trim(mark, s.fence[:1]) == "" {
			s.fence = ""
		}
	case strings.HasPrefix(mark, "```") || strings.HasPrefix(mark, "~~~"):
		s.block = append(s.block, line)
		s.fence = mark[:len(mark)-len(strings.TrimLeft(mark, mark[:1]))]
	case line == "":
		s.paragraph()
	default:
		if level, title := heading(line); level > 0 {
			s.paragraph()
			s.flush()
			s.headings[level-1] = title
			clear(s.headings[level:])
			return
		}
		s.block = append(s.block, line)
	}
}

// heading returns the level and the text of a heading line; level 0 means no heading.
func heading(line string) (int, string) {
	title := strings.TrimLeft(line, "#")
	level := len(line) - len(title)
	if level < 1 || level > 6 || title == "" || title[0] != ' ' {
		return 0, ""
	}
	title = strings.TrimSpace(title)
	if utf8.RuneCountInString(title) > 200 {
		title = string([]rune(title)[:200])
	}
	return level, title
}

// paragraph adds the current paragraph to the passage, or starts a new passage with it.
func (s *splitter) paragraph() {
	if len(s.block) == 0 {
		return
	}
	text := strings.Join(s.block, "\n")
	s.block = nil
	if s.text.Len() > 0 && s.text.Len()+len(text) > target {
		s.flush()
	}
	for len(text) > most {
		i := breakAt(text)
		s.add(text[:i])
		s.flush()
		text = text[i:]
	}
	s.add(text)
}

func (s *splitter) add(text string) {
	if s.text.Len() > 0 {
		s.text.WriteString("\n\n")
	}
	s.text.WriteString(text)
}

// breakAt returns where to break a long text: after a line, a sentence, a word, or a character.
func breakAt(text string) int {
	part := text[:most]
	for _, end := range []string{"\n", ". ", "。", " "} {
		if i := strings.LastIndex(part, end); i > most/3 {
			return i + len(end)
		}
	}
	i := most
	for !utf8.RuneStart(text[i]) {
		i--
	}
	return i
}

func (s *splitter) flush() {
	text := strings.TrimFunc(s.text.String(), unicode.IsSpace)
	s.text.Reset()
	if text == "" {
		return
	}
	var above []string
	for _, h := range s.headings {
		if h != "" {
			above = append(above, h)
		}
	}
	s.list = append(s.list, Passage{Headings: slices.Clip(above), Text: text})
}
