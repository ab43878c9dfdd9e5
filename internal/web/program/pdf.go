package program

import (
	"bytes"
	"errors"
	"strings"

	"github.com/ledongthuc/pdf"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Bounds of a PDF. Its own figures are what a file is read by, and made to lie.
const (
	maxPages   = 2000
	maxKids    = 20_000
	maxTreeTop = 40
	// maxObjects is the largest number that a table of objects may name.
	maxObjects = 2_000_000
)

// pdfText is what is written in a PDF, page by page.
func pdfText(b *body) (*converted, error) {
	if b.cut {
		return nil, faultf(web.FaultContent, "the PDF is larger than what is read of a body, and cannot be read in part")
	}
	data, err := pdfFrame(b.data)
	if err != nil {
		return nil, err
	}
	file, err := pdf.NewReader(bytes.NewReader(data), int64(len(data)))
	switch {
	case errors.Is(err, pdf.ErrInvalidPassword):
		return nil, faultf(web.FaultContent, "the PDF is encrypted and opens with a password only")
	case err != nil && strings.Contains(err.Error(), "encrypt"):
		return nil, faultf(web.FaultContent, "the PDF is encrypted in a way that is unknown")
	case err != nil:
		return nil, faultf(web.FaultContent, "the PDF is broken: %v", err)
	}
	d := &pdfDocument{fonts: map[string]*pdfFont{}}
	if !guarded(func() {
		d.title = file.Trailer().Key("Info").Key("Title").Text()
	}) {
		d.title = ""
	}
	if whole := guarded(func() { d.pages(file.Trailer().Key("Root").Key("Pages"), pdf.Value{}, 0) }); !whole && d.out.Len() == 0 {
		return nil, faultf(web.FaultContent, "the PDF is broken: its pages cannot be found")
	}
	text := squeeze(d.out.String())
	if text == "" {
		return nil, faultf(web.FaultContent, "there is no text in the PDF: its pages may be images")
	}
	return &converted{text: text, title: d.title, cut: d.cut}, nil
}

// squeeze leaves at most one empty line between others, and no space at their ends.
func squeeze(s string) string {
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

// guarded runs f and reports whether it came to its end: the library panics at
// what it cannot read.
func guarded(f func()) (whole bool) {
	defer func() { whole = recover() == nil }()
	f()
	return
}

// pdfFrame is the file between its first and last mark. What stands around them
// no reader minds, but the library does, and so with versions after 1.7.
func pdfFrame(data []byte) ([]byte, error) {
	start := bytes.Index(data[:min(len(data), 1024)], []byte("%PDF-"))
	end := bytes.LastIndex(data, []byte("%%EOF"))
	if start < 0 || end < start+16 {
		return nil, faultf(web.FaultContent, "the PDF is broken: its beginning or its end is missing")
	}
	data = bytes.Clone(data[start : end+5])
	copy(data[5:], "1.7\n")
	if huge(data) {
		return nil, faultf(web.FaultContent, "the PDF is broken: it names objects that no file of its size has")
	}
	return data, nil
}

// huge reports whether a figure that memory is taken by is out of all measure.
func huge(data []byte) bool {
	for _, key := range []string{"/Size", "/Index", "/W", "/Columns", "xref"} {
		for rest := data; ; {
			i := bytes.Index(rest, []byte(key))
			if i < 0 {
				break
			}
			place := bytes.HasSuffix(rest[:i], []byte("start"))
			rest = rest[i+len(key):]
			if !place && hugeFigures(rest) {
				return true
			}
		}
	}
	return false
}

// hugeFigures looks at the figures that b begins with, which in a table of
// objects go on to its end.
func hugeFigures(b []byte) bool {
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

// offset reports whether the digit at i belongs to an entry of ten digits, five
// digits and a letter.
func offset(b []byte, i int) bool {
	for i > 0 && b[i-1] >= '0' && b[i-1] <= '9' {
		i--
	}
	entry := b[i:]
	return len(entry) > 17 && entry[10] == ' ' && (entry[17] == 'n' || entry[17] == 'f')
}

// pdfDocument collects the text of pages.
type pdfDocument struct {
	out   strings.Builder
	fonts map[string]*pdfFont
	title string
	kids  int
	count int
	cut   bool
}

// pages goes through the tree of pages below node.
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
			// A page that is broken is not all of them.
			if !guarded(func() { d.pages(kids.Index(i), resources, depth+1) }) {
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
	if !guarded(func() { p.run(contents, resources) }) {
		d.cut = true
	}
	if text := strings.TrimSpace(p.out.String()); text != "" {
		if d.out.Len() > 0 {
			d.out.WriteString("\n\n")
		}
		d.out.WriteString(text)
	}
}
