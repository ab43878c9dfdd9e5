package program

import (
	"bytes"
	"io"
	"net/url"
	"runtime"
	"runtime/metrics"
	"strings"

	"golang.org/x/net/html"
	"golang.org/x/net/html/atom"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

const (
	// maxTree is how much memory a page's tree may take, in bytes.
	maxTree = 64 << 20
	// parseStep is how much of a page is read between two looks at that.
	parseStep = 4 << 10
)

// convertPage brings a page into form.
func convertPage(b *body, code coding, form string, at *url.URL) (*converted, error) {
	p, err := parsePage(b, code, at)
	if err != nil {
		return nil, err
	}
	switch form {
	case web.Text:
		return &converted{text: p.text(), title: p.title, form: web.Text, cut: p.cut}, nil
	case web.Article:
		c, err := p.article()
		if c != nil || err != nil {
			return c, err
		}
		// It took the page apart in search of one.
		if p, err = parsePage(b, code, at); err != nil {
			return nil, err
		}
	}
	b.data = nil // the tree is enough to hold
	text, err := p.markdown()
	if err != nil {
		return nil, err
	}
	return &converted{text: text, title: p.title, form: web.Markdown, cut: p.cut}, nil
}

// page is a parsed and cleaned page.
type page struct {
	doc   *html.Node
	base  *url.URL
	title string
	// cut: not all of it is in the tree.
	cut bool
	// elements are the nodes left in the tree.
	elements int
	// plain: finding out what of its text Markdown would take for its own is too
	// much work, so nothing is escaped.
	plain bool
}

// parsePage reads b's tree. A page that nests deeper than the parser goes along
// is read again without what nests.
func parsePage(b *body, code coding, at *url.URL) (*page, error) {
	p := &page{base: at}
	in := &thrifty{r: code.reader(b.data)}
	doc, err := html.Parse(in)
	if err != nil {
		in = &thrifty{r: code.reader(b.data)}
		flat, ferr := flatten(in)
		if ferr != nil {
			return nil, faultf(web.FaultContent, "the page cannot be read: %v", ferr)
		}
		if doc, err = html.Parse(&thrifty{r: bytes.NewReader(flat)}); err != nil {
			return nil, faultf(web.FaultContent, "the page cannot be read: %v", err)
		}
		p.cut = true
	}
	p.doc, p.cut = doc, p.cut || in.cut
	newCleaner(p).run()
	return p, nil
}

// thrifty reads until what was made of it takes too much memory: a few bytes can
// stand for many nodes.
type thrifty struct {
	r     io.Reader
	cut   bool
	start uint64
	begun bool
}

func (t *thrifty) Read(p []byte) (int, error) {
	if !t.begun {
		t.start, t.begun = heap(), true
	}
	if used := heap(); used > t.start+maxTree {
		runtime.GC()
		// What is left is the tree. Most of the room: it is cut, so that collecting
		// does not become what the time goes into.
		if heap() > t.start+maxTree*3/4 {
			t.cut = true
			return 0, io.EOF
		}
	}
	return t.r.Read(p[:min(len(p), parseStep)])
}

// heap is the size of objects in memory, dead ones that were not yet collected
// included.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// flatten leaves of a page's markup what cannot nest.
func flatten(in io.Reader) ([]byte, error) {
	var out bytes.Buffer
	z := html.NewTokenizer(in)
	for {
		switch z.Next() {
		case html.ErrorToken:
			if err := z.Err(); err != io.EOF {
				return nil, err
			}
			return out.Bytes(), nil
		case html.TextToken:
			out.Write(z.Raw())
		case html.StartTagToken, html.EndTagToken, html.SelfClosingTagToken:
			raw := z.Raw()
			name, _ := z.TagName()
			if flat(atom.Lookup(name)) {
				out.Write(raw)
			} else {
				out.WriteByte(' ')
			}
		}
	}
}

func flat(a atom.Atom) bool {
	switch a {
	case atom.Title, atom.Base, atom.P, atom.Br, atom.A, atom.Img, atom.Li, atom.Hr,
		atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Script, atom.Style:
		return true
	}
	return false
}

// textOf is the text below n, at most limit bytes of it.
func textOf(n *html.Node, limit int) string {
	var b strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode && b.Len() < limit {
			b.WriteString(d.Data[:min(len(d.Data), limit)])
		}
	}
	return b.String()
}

func attr(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key && a.Namespace == "" {
			return a.Val
		}
	}
	return ""
}
