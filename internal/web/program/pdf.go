package program

import (
	"bytes"
	"errors"
	"strings"

	"github.com/ledongthuc/pdf"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Bounds of a PDF. Its header values are untrusted.
const (
	maxPages   = 2000
	maxKids    = 20_000
	maxTreeTop = 40
	// maxObjects is the maximum object number.
	maxObjects = 2_000_000
)

// pdfText returns the text of a PDF, page by page.
func pdfText(b *body) (*converted, error) {
	if b.cut {
		return nil, faultf(web.FaultContent,
			"the PDF is larger than the size limit of a body")
	}
	data, err := pdfFrame(b.data)
	if err != nil {
		return nil, err
	}
	file, err := pdf.NewReader(bytes.NewReader(data), int64(len(data)))
	switch {
	case errors.Is(err, pdf.ErrInvalidPassword):
		return nil, faultf(web.FaultContent, "the PDF is encrypted and requires a password")
	case err != nil && strings.Contains(err.Error(), "encrypt"):
		return nil, faultf(web.FaultContent, "the PDF has an unsupported encryption")
	case err != nil:
		return nil, faultf(web.FaultContent, "the PDF is damaged: %v", err)
	}
	d := &pdfDocument{fonts: map[string]*pdfFont{}}
	if !finishes(func() {
		d.title = file.Trailer().Key("Info").Key("Title").Text()
	}) {
		d.title = ""
	}
	if whole := finishes(func() { d.pages(file.Trailer().Key("Root").Key("Pages"), pdf.Value{}, 0) }); !whole &&
		d.out.Len() == 0 {
		return nil, faultf(web.FaultContent, "the PDF is damaged: pages not found")
	}
	text := collapseBlankLines(d.out.String())
	if text == "" {
		return nil, faultf(web.FaultContent, "the PDF contains no text: its pages may be images")
	}
	return &converted{text: text, title: d.title, cut: d.cut}, nil
}

// collapseBlankLines keeps at most one empty line in a row and removes blanks at line ends.
func collapseBlankLines(s string) string {
	var b strings.Builder
	empty := 0
	for line := range strings.Lines(s) {
		line = strings.TrimRight(line, " \t\r\n\x00\u00a0")
		if line == "" {
			empty++
			continue
		}
		if b.Len() > 0 {
			b.WriteString("\n\n"[:1+min(empty, 1)])
		}
		empty = 0
		b.WriteString(line)
	}
	return b.String()
}

// finishes runs f and reports whether it finished: the library panics on invalid data.
func finishes(f func()) (whole bool) {
	defer func() { whole = recover() == nil }()
	f()
	return
}

// pdfFrame returns the data between the first and the last mark. The library rejects other data
// around them, and versions after 1.7, which readers usually accept.
func pdfFrame(data []byte) ([]byte, error) {
	start := bytes.Index(data[:min(len(data), 1024)], []byte("%PDF-"))
	end := bytes.LastIndex(data, []byte("%%EOF"))
	if start < 0 || end < start+16 {
		return nil, faultf(web.FaultContent, "the PDF is damaged: start or end not found")
	}
	data = bytes.Clone(data[start : end+5])
	copy(data[5:], "1.7\n")
	if hasHugeNumber(data) {
		return nil, faultf(web.FaultContent, "the PDF is damaged: object numbers are too large")
	}
	return data, nil
}

// hasHugeNumber reports whether a number that determines memory use is too large.
func hasHugeNumber(data []byte) bool {
	for _, key := range []string{"/Size", "/Index", "/W", "/Columns", "xref"} {
		for rest := data; ; {
			i := bytes.Index(rest, []byte(key))
			if i < 0 {
				break
			}
			place := bytes.HasSuffix(rest[:i], []byte("start"))
			rest = rest[i+len(key):]
			if !place && startsWithHugeNumber(rest) {
				return true
			}
		}
	}
	return false
}

// startsWithHugeNumber checks the numbers at the start of b. In a table of objects, they continue
// to its end.
func startsWithHugeNumber(b []byte) bool {
	n, figures := 0, 0
	for i, c := range b {
		switch {
		case c >= '0' && c <= '9':
			n = min(n*10+int(c-'0'), maxObjects+1)
			if n > maxObjects && !offset(b, i) {
				return true
			}
		case c == ' ' || c == '\r' || c == '\n' || c == '\t' || c == '[':
			n = 0
		case c == 'n' || c == 'f':
			n = 0
			figures++
		default:
			return false
		}
	}
	return figures > maxObjects
}

// offset reports whether the digit at i belongs to a table entry: ten digits, five digits and a
// letter.
func offset(b []byte, i int) bool {
	for i > 0 && b[i-1] >= '0' && b[i-1] <= '9' {
		i--
	}
	entry := b[i:]
	return len(entry) > 17 && entry[10] == ' ' && (entry[17] == 'n' || entry[17] == 'f')
}

// pdfDocument collects the text of the pages.
type pdfDocument struct {
	out   strings.Builder
	fonts map[string]*pdfFont
	title string
	kids  int
	count int
	cut   bool
}

// pages visits the tree of pages below node.
func (d *pdfDocument) pages(node, resources pdf.Value, depth int) {
	if d.kids++; d.kids > maxKids || depth > maxTreeTop || d.count >= maxPages || d.out.Len() > maxOutput {
		d.cut = true
		return
	}
	if own := node.Key("Resources"); !own.IsNull() {
		resources = own
	}
	if kids := node.Key("Kids"); kids.Len() > 0 {
		for i := range kids.Len() {
			// One damaged page must not prevent the others.
			if !finishes(func() { d.pages(kids.Index(i), resources, depth+1) }) {
				d.cut = true
			}
		}
		return
	}
	contents := node.Key("Contents")
	if contents.IsNull() {
		return
	}
	d.count++
	p := newPDFPage(d)
	if !finishes(func() { p.run(contents, resources) }) {
		d.cut = true
	}
	if text := strings.TrimSpace(p.out.String()); text != "" {
		if d.out.Len() > 0 {
			d.out.WriteString("\n\n")
		}
		d.out.WriteString(text)
	}
}
