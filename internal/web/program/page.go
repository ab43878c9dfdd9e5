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
	// maxTree is the maximum memory for the tree of a page, in bytes.
	maxTree = 64 << 20
	// parseStep is how much of a page is read between two checks of the memory, in bytes.
	parseStep = 4 << 10
)

// convertPage converts a page to form.
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
		// The search modified the tree: parse again.
		if p, err = parsePage(b, code, at); err != nil {
			return nil, err
		}
	}
	b.data = nil // the tree is sufficient
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
	// cut reports that a part of the page is missing.
	cut bool
	// elements is the number of nodes left in the tree.
	elements int
	// plain disables escaping of Markdown characters, because there are too many to check.
	plain bool
}

// parsePage parses a page. If it is nested too deeply for the parser, it is parsed again without
// nesting elements.
func parsePage(b *body, code coding, at *url.URL) (*page, error) {
	p := &page{base: at}
	in := &memoryLimitedReader{r: code.reader(b.data)}
	doc, err := html.Parse(in)
	if err != nil {
		in = &memoryLimitedReader{r: code.reader(b.data)}
		flat, ferr := flatten(in)
		if ferr != nil {
			return nil, faultf(web.FaultContent, "cannot parse the page: %v", ferr)
		}
		if doc, err = html.Parse(&memoryLimitedReader{r: bytes.NewReader(flat)}); err != nil {
			return nil, faultf(web.FaultContent, "cannot parse the page: %v", err)
		}
		p.cut = true
	}
	p.doc, p.cut = doc, p.cut || in.cut
	newCleaner(p).run()
	return p, nil
}

// memoryLimitedReader stops reading when the heap grew by maxTree: few bytes can create many nodes.
type memoryLimitedReader struct {
	r     io.Reader
	cut   bool
	start uint64
	begun bool
}

func (t *memoryLimitedReader) Read(p []byte) (int, error) {
	if !t.begun {
		t.start, t.begun = heap(), true
	}
	if used := heap(); used > t.start+maxTree {
		runtime.GC()
		// The tree is left. Stop at three quarters, because otherwise the collector would
		// take most of the time.
		if heap() > t.start+maxTree*3/4 {
			t.cut = true
			return 0, io.EOF
		}
	}
	return t.r.Read(p[:min(len(p), parseStep)])
}

// heap returns the size of all objects on the heap, including garbage.
func heap() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// flatten removes the elements that can nest.
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
		default:
		}
	}
}

func flat(a atom.Atom) bool {
	switch a {
	case atom.Title, atom.Base, atom.P, atom.Br, atom.A, atom.Img, atom.Li, atom.Hr,
		atom.H1, atom.H2, atom.H3, atom.H4, atom.H5, atom.H6, atom.Script, atom.Style:
		return true
	default:
		return false
	}
}

// textOf returns the text below n, at most about limit bytes.
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
