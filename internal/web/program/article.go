package program

import (
	"strings"
	"unicode/utf8"

	readability "codeberg.org/readeck/go-readability/v2"
	"golang.org/x/net/html"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

const (
	// maxArticle is the maximum number of nodes of a page in which an article is searched, because
	// each of several rounds visits all of them.
	maxArticle = 60_000
	// minArticle is the minimum length of an article in characters.
	minArticle = 140
)

// article returns the main article of the page, or nil if there is none. It modifies the tree.
func (p *page) article() (*converted, error) {
	if p.elements > maxArticle {
		return nil, nil
	}
	parser := readability.NewParser()
	found, err := parser.ParseAndMutate(p.doc, p.base)
	if err != nil || found.Node == nil {
		return nil, nil //nolint:nilerr // without an article, the caller uses the whole page
	}
	// The library may have restored unwanted nodes: clean the result again.
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
