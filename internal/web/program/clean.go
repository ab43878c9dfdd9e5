package program

import (
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Bounds of a tree to convert.
const (
	maxNodes = 400_000
	// maxShape is the maximum nesting of elements that indent their lines: each level writes all
	// lines again.
	maxShape = 12
	// maxLinks is the maximum total size of links in bytes: the base can make each one long.
	maxLinks = 4 << 20
	// maxCells is the maximum number of cells of a table, spans included.
	maxCells = 20_000
	// maxScanned bounds the search for closing brackets, in bytes.
	maxScanned = 1 << 30
	// maxMarks is the maximum number of characters that are checked for escaping.
	maxMarks = 300_000
	marks    = "\\*_-+.>|$#=[]()!~`\"'"
	maxValue = 4 << 10
	maxData  = 128 << 10
)

// cleaner removes from a tree what a reader does not see.
type cleaner struct {
	p     *page
	nodes int
	links int // total bytes of links
	based bool
	// texts counts bytes of text, open counts unclosed brackets, and marks counts characters that
	// are special in Markdown.
	texts, open, marks int
}

func newCleaner(p *page) *cleaner { return &cleaner{p: p} }

func (c *cleaner) run() {
	c.walk(c.p.doc, 0, false)
	c.p.elements = c.nodes
	c.p.plain = c.marks > maxMarks || c.open > maxScanned/max(c.texts, 1)
	c.p.title = strings.TrimSpace(c.p.title)
}

// walk cleans the tree below n. The parser bounds its depth.
func (c *cleaner) walk(n *html.Node, shape int, link bool) {
	for child := n.FirstChild; child != nil; {
		next := child.NextSibling
		c.nodes++
		switch {
		case c.nodes > maxNodes:
			c.p.cut = true
			n.RemoveChild(child)
		case child.Type == html.TextNode:
		case child.Type != html.ElementNode || c.invisible(child):
			n.RemoveChild(child)
		default:
			c.element(child, &shape, link)
			c.walk(child, shape+deepens(child), link || child.DataAtom == atom.A)
		}
		child = next
	}
	c.join(n)
}

// join merges adjacent text nodes after a removal. Later steps would need quadratic time for it.
func (c *cleaner) join(n *html.Node) {
	for child := n.FirstChild; child != nil; child = child.NextSibling {
		if child.Type != html.TextNode {
			continue
		}
		if next := child.NextSibling; next != nil && next.Type == html.TextNode {
			var b strings.Builder
			b.WriteString(child.Data)
			for ; next != nil && next.Type == html.TextNode; next = child.NextSibling {
				b.WriteString(next.Data)
				n.RemoveChild(next)
			}
			child.Data = b.String()
		}
		child.Data = web.Plain(child.Data)
		c.texts += len(child.Data)
		for i := range len(child.Data) {
			if strings.IndexByte(marks, child.Data[i]) >= 0 {
				c.marks++
			}
		}
		c.open += strings.Count(child.Data[strings.LastIndexByte(child.Data, ']')+1:], "[")
	}
}

func deepens(n *html.Node) int {
	switch n.DataAtom {
	case atom.Blockquote, atom.Ul, atom.Ol, atom.Dl, atom.Menu:
		return 1
	default:
		return 0
	}
}

// invisible reports whether a reader does not see n. It records title and base of the page.
func (c *cleaner) invisible(n *html.Node) bool {
	switch n.DataAtom {
	case atom.Title:
		if c.p.title == "" && n.Namespace == "" {
			c.p.title = textOf(n, maxValue)
		}
		return n.Namespace != "" // the article parser uses it too
	case atom.Base:
		c.rebase(n)
		return true
	case atom.Script:
		return attr(n, "type") != "application/ld+json" || n.FirstChild == nil || len(n.FirstChild.Data) > maxData
	case atom.Style, atom.Template, atom.Noscript, atom.Svg, atom.Canvas, atom.Object, atom.Embed,
		atom.Iframe, atom.Frame, atom.Frameset, atom.Noframes, atom.Audio, atom.Video, atom.Source, atom.Track,
		atom.Map, atom.Area, atom.Select, atom.Datalist, atom.Input, atom.Textarea, atom.Link, atom.Param:
		return true
	case atom.Dialog:
		return !has(n, "open")
	case atom.Html, atom.Head, atom.Body, atom.Meta:
		return false
	default:
		return has(n, "hidden") && attr(n, "hidden") != "until-found" || hides(attr(n, "style"))
	}
}

func has(n *html.Node, key string) bool {
	for _, a := range n.Attr {
		if a.Key == key {
			return true
		}
	}
	return false
}

// hides reports whether a style hides an element.
func hides(style string) bool {
	for declaration := range strings.SplitSeq(style, ";") {
		name, value, _ := strings.Cut(declaration, ":")
		value = strings.ToLower(strings.TrimSpace(value))
		value = strings.TrimSpace(strings.TrimSuffix(value, "!important"))
		switch strings.ToLower(strings.TrimSpace(name)) {
		case "display":
			if value == "none" {
				return true
			}
		case "visibility":
			if value == "hidden" || value == "collapse" {
				return true
			}
		case "opacity", "font-size":
			if strings.Trim(strings.TrimRight(value, "pxemrt%"), "0.") == "" && value != "" {
				return true
			}
		}
	}
	return false
}

// rebase uses the first base of the page, as browsers do.
func (c *cleaner) rebase(n *html.Node) {
	href := attr(n, "href")
	if c.based || href == "" || len(href) > maxValue {
		return
	}
	if u, err := c.p.base.Parse(strings.TrimSpace(href)); err == nil && (u.Scheme == "http" || u.Scheme == "https") {
		u.User = nil
		c.p.base, c.based = u, true
	}
}

// element cleans n itself.
func (c *cleaner) element(n *html.Node, shape *int, link bool) {
	switch n.DataAtom {
	case atom.A:
		c.anchor(n, link)
	case atom.Img:
		c.image(n)
	case atom.Table:
		if tooLarge(n) {
			plain(n)
		}
	case atom.Blockquote, atom.Ul, atom.Ol, atom.Dl, atom.Menu:
		if *shape >= maxShape {
			rename(n, atom.Div)
		}
	case atom.Dt:
		rename(n, atom.P)
	default:
	}
	kept := n.Attr[:0]
	for _, a := range n.Attr {
		if len(kept) < 16 && wanted(a) {
			kept = append(kept, a)
		}
	}
	n.Attr = kept
}

func wanted(a html.Attribute) bool {
	switch a.Key {
	case "href", "src":
		return true // cleaned by anchor and image
	case "colspan", "rowspan":
		n, err := strconv.Atoi(a.Val)
		return err == nil && n > 0 && n <= 1000
	case "start":
		n, err := strconv.Atoi(a.Val)
		return err == nil && n >= 0 && n < 1_000_000_000
	case "title", "alt", "align", "class", "id", "rel", "role", "itemprop", "itemtype", "property",
		"name", "content", "datetime", "lang", "dir", "type", "aria-hidden", "aria-modal":
		return len(a.Val) <= maxValue
	}
	return false
}

func rename(n *html.Node, a atom.Atom) { n.DataAtom, n.Data = a, a.String() }

// anchor makes the link of n absolute, or removes a link that is of no use to a reader.
func (c *cleaner) anchor(n *html.Node, inside bool) {
	href := c.absolute(attr(n, "href"), "http", "https", "mailto", "tel")
	if href == "" || inside {
		rename(n, atom.Span)
		drop(n, "href")
		return
	}
	setAttr(n, "href", href)
}

// image makes the source of n absolute. Without a usable source, it keeps only the alternative
// text.
func (c *cleaner) image(n *html.Node) {
	src := attr(n, "src")
	for _, lazy := range []string{"data-src", "data-original", "data-lazy-src"} {
		if late := attr(n, lazy); late != "" && (src == "" || strings.HasPrefix(src, "data:")) {
			src = late
		}
	}
	if src = c.absolute(src, "http", "https"); src != "" {
		setAttr(n, "src", src)
		return
	}
	alt := oneLine(attr(n, "alt"), maxTitle)
	rename(n, atom.Span)
	n.Attr = nil
	if alt != "" {
		n.AppendChild(&html.Node{Type: html.TextNode, Data: alt})
	}
}

// absolute returns a link of the page as an absolute URL, or "" if it is a fragment or has another
// scheme.
func (c *cleaner) absolute(ref string, schemes ...string) string {
	ref = strings.TrimSpace(ref)
	if ref == "" || strings.HasPrefix(ref, "#") || len(ref) > maxValue || c.links > maxLinks {
		return ""
	}
	u, err := c.p.base.Parse(strings.Map(func(r rune) rune {
		// Browsers drop these characters, which can hide "javascript:".
		if r == '\t' || r == '\n' || r == '\r' {
			return -1
		}
		return r
	}, ref))
	if err != nil {
		return ""
	}
	for _, s := range schemes {
		if u.Scheme == s {
			return c.counted(u)
		}
	}
	return ""
}

func (c *cleaner) counted(u *url.URL) string {
	s := u.String()
	if c.links += len(s); c.links > maxLinks {
		c.p.cut = true
		return ""
	}
	return s
}

func setAttr(n *html.Node, key, value string) {
	drop(n, key)
	n.Attr = append([]html.Attribute{{Key: key, Val: value}}, n.Attr...)
}

func drop(n *html.Node, key string) {
	kept := n.Attr[:0]
	for _, a := range n.Attr {
		if a.Key != key {
			kept = append(kept, a)
		}
	}
	n.Attr = kept
}

// tooLarge reports whether a table has too many cells. Rows are filled up to the widest.
func tooLarge(table *html.Node) bool {
	rows, row, widest := 0, 0, 0
	for d := range table.Descendants() {
		switch d.DataAtom {
		case atom.Tr:
			rows, row = rows+1, 0
		case atom.Td, atom.Th:
			row += span(d, "colspan")
			rows += span(d, "rowspan") - 1
			widest = max(widest, row)
		default:
		}
		if rows > maxCells || widest > maxCells || rows*widest > maxCells {
			return true
		}
	}
	return false
}

func span(n *html.Node, key string) int {
	v, err := strconv.Atoi(attr(n, key))
	if err != nil || v < 1 {
		return 1
	}
	return min(v, maxCells)
}

// plain converts a table to the text of its rows.
func plain(table *html.Node) {
	for d := range table.Descendants() {
		switch d.DataAtom {
		case atom.Tr, atom.Caption:
			rename(d, atom.P)
		case atom.Td, atom.Th:
			rename(d, atom.Span)
			d.AppendChild(&html.Node{Type: html.TextNode, Data: " "})
		case atom.Tbody, atom.Thead, atom.Tfoot, atom.Table:
			rename(d, atom.Div)
		default:
		}
	}
	rename(table, atom.Div)
}
