package program

import (
	"strings"
	"unicode"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"
)

// text returns the whole page without markup, one line per block.
func (p *page) text() string {
	w := &textWriter{}
	w.node(p.doc, false)
	return strings.TrimSpace(w.b.String())
}

// textWriter writes words separated by one space and breaks lines at the start and end of blocks.
type textWriter struct {
	b strings.Builder
	// lines and space are pending separators before the next word.
	lines int
	space bool
}

func (w *textWriter) node(n *html.Node, pre bool) {
	switch n.Type {
	case html.TextNode:
		if pre {
			w.verbatim(n.Data)
		} else {
			w.words(n.Data)
		}
		return
	case html.ElementNode:
		switch n.DataAtom {
		case atom.Head, atom.Script:
			return
		case atom.Br:
			w.lines++
			return
		case atom.Pre:
			pre = true
		case atom.Td, atom.Th:
			if n.PrevSibling != nil {
				w.verbatim("\t")
			}
		default:
		}
	default:
	}
	gap := gapOf(n)
	w.lines = max(w.lines, gap)
	if n.DataAtom == atom.Li {
		w.verbatim("- ")
	}
	for c := n.FirstChild; c != nil; c = c.NextSibling {
		w.node(c, pre)
	}
	w.lines = max(w.lines, gap)
}

// gapOf returns the number of line breaks around n.
func gapOf(n *html.Node) int {
	switch n.DataAtom {
	case atom.Ul, atom.Ol:
		if n.Parent != nil && n.Parent.DataAtom == atom.Li {
			return 1
		}
		return 2
	case atom.P, atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Blockquote, atom.Pre,
		atom.Table, atom.Dl, atom.Figure, atom.Hr:
		return 2
	case atom.Div, atom.Section, atom.Article, atom.Main, atom.Header, atom.Footer, atom.Nav, atom.Aside,
		atom.Li, atom.Tr, atom.Dt, atom.Dd, atom.Form, atom.Fieldset, atom.Address, atom.Figcaption,
		atom.Details, atom.Summary, atom.Caption, atom.Center, atom.Body:
		return 1
	default:
		return 0
	}
}

func (w *textWriter) words(s string) {
	if first := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsSpace(r) }); first != 0 {
		w.space = true
	}
	for word := range strings.FieldsSeq(s) {
		w.verbatim(word)
		w.space = true
	}
	if s != "" && !unicode.IsSpace(rune(s[len(s)-1])) {
		w.space = false
	}
}

// verbatim writes pending separators and s.
func (w *textWriter) verbatim(s string) {
	if w.b.Len() > 0 {
		switch {
		case w.lines > 0:
			w.b.WriteString(strings.Repeat("\n", min(w.lines, 2)))
		case w.space:
			w.b.WriteByte(' ')
		}
	}
	w.lines, w.space = 0, false
	w.b.WriteString(s)
}
