// Package passages finds what of a text answers a question: it splits Markdown
// into passages, ranks them by the words that they share with the question, and
// gives the best in the order of the text. It is pure, knows no language, and
// takes time in proportion to the text.
package passages

import (
	"cmp"
	"slices"
	"strings"
	"unicode/utf8"
)

// Bounds of one call.
const (
	// MaxText is how much of a text is looked at, in bytes.
	MaxText = 4 << 20
	// target is how long a passage is to be, in bytes, and most how long it may be:
	// paragraphs are put together up to the one and split at the other.
	target = 600
	most   = 1600
)

// Passage is a part of a text.
type Passage struct {
	// Headings are those above it, the outermost first.
	Headings []string
	Text     string
	// Score is 0 where it shares no word with the question. It compares passages of
	// one text with each other, and means nothing beside that.
	Score float64
}

// Best are those passages of markdown that answer question best, in the order of
// the text, with at most size characters together, headings included. Where
// nothing has a word in common with the question, they are the first ones.
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
			// One that is cut is better than none.
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

// length is in characters, with what joins its parts.
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

// cut leaves at most size characters of it, headings included, and drops
// headings for which there is no room.
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

// Join writes passages as one Markdown text: each path of headings once where
// several follow one another below it.
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
