// Package passages finds the parts of a text that answer a question. It splits Markdown into
// passages, ranks them by words shared with the question, and returns the best in text order. It
// does no I/O and takes time proportional to the text.
package passages

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of one call, in bytes.
const (
	// MaxText is how much of a text is read.
	MaxText = 4 << 20
	// target is the size up to which paragraphs are combined, and most the maximum size of a
	// passage.
	target = 600
	most   = 1600
)

// Passage is a part of a text.
type Passage struct {
	// Headings are the headings above it, outermost first.
	Headings []string
	Text     string
	// Score is 0 if no word matches the question. Scores are comparable only within one text.
	Score float64
}

// Best returns the passages of markdown that match question best, in text order, with at most size
// characters in total, headings included. If no word matches, it returns the first passages.
func Best(markdown, question string, size int) []Passage {
	all := Split(markdown)
	rank(all, question)
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(all[b].Score, all[a].Score) })
	var taken []int
	left := size
	for n, i := range order {
		if all[i].Score == 0 && n > 0 && all[order[0]].Score > 0 {
			break
		}
		length := all[i].length()
		if length > left {
			if len(taken) > 0 {
				continue
			}
			// A truncated passage is better than none.
			all[i].cut(left)
			length = left
		}
		taken = append(taken, i)
		if left -= length; left <= 0 {
			break
		}
	}
	slices.Sort(taken)
	best := make([]Passage, len(taken))
	for n, i := range taken {
		best[n] = all[i]
	}
	return best
}

// length returns the length in characters, including separators.
func (p *Passage) length() int {
	n := utf8.RuneCountInString(p.Text) + 2
	if len(p.Headings) > 0 {
		n += 3
	}
	for _, h := range p.Headings {
		n += utf8.RuneCountInString(h) + 3
	}
	return n
}

// cut shortens the passage to at most size characters, headings included. It drops headings that do
// not fit.
func (p *Passage) cut(size int) {
	for len(p.Headings) > 0 && p.length()-utf8.RuneCountInString(p.Text) > size/2 {
		p.Headings = p.Headings[1:]
	}
	room := max(0, size-(p.length()-utf8.RuneCountInString(p.Text)))
	n := 0
	for i := range p.Text {
		if n == room {
			p.Text = p.Text[:i]
			return
		}
		n++
	}
}

// Join returns the passages as one Markdown text. A heading path is written once for consecutive
// passages.
func Join(list []Passage) string {
	var b strings.Builder
	var above []string
	for _, p := range list {
		if len(p.Headings) > 0 && !slices.Equal(p.Headings, above) {
			b.WriteString("**" + strings.Join(p.Headings, " › ") + "**\n\n")
		}
		above = p.Headings
		b.WriteString(p.Text)
		b.WriteString("\n\n")
	}
	return strings.TrimSuffix(b.String(), "\n\n")
}
