package program

import (
	"strings"
	"unicode/utf8"

	readability "codeberg.org/readeck/go-readability/v2"
	"golang.org/x/net/html"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

const (
	// maxArticle is the largest page, in nodes, in which an article is looked for:
	// each of several rounds looks at all of them.
	maxArticle = 60_000
	// minArticle is what one has at least, in characters.
	minArticle = 140
)

// article is what is to be read of the page, nil where there is nothing of the
// kind. The tree is used up by it.
func (p *page) article() (*converted, error) {
	if p.elements > maxArticle {
		return nil, nil
	}
	parser := readability.NewParser()
	found, err := parser.ParseAndMutate(p.doc, p.base)
	if err != nil || found.Node == nil {
		return nil, nil
	}
	// What it put together has to be cleaned of what it brought back.
	root := &html.Node{Type: html.DocumentNode}
	if found.Node.Parent != nil {
		found.Node.Parent.RemoveChild(found.Node)
	}
	root.AppendChild(found.Node)
	clean := &page{doc: root, base: p.base}
	newCleaner(clean).run()
	text, err := clean.markdown()
	if err != nil || utf8.RuneCountInString(strings.TrimSpace(text)) < minArticle {
		return nil, err
	}
	title := found.Title()
	if title == "" {
		title = p.title
	}
	return &converted{text: text, title: title, byline: found.Byline(), form: web.Article, cut: p.cut || clean.cut}, nil
}
