package program

import (
	"math"
	"strings"

	"github.com/ledongthuc/pdf"
)

const (
	// maxForms is the maximum nesting of forms.
	maxForms = 8
	maxSaved = 512
	// maxShown is the maximum number of operators of a page, including its forms.
	maxShown = 5_000_000
)

// matrix maps a point: x' = a·x + c·y + e, y' = b·x + d·y + f.
type matrix struct{ a, b, c, d, e, f float64 }

func identity() matrix { return matrix{a: 1, d: 1} }

// then returns the map that applies m and then n.
func (m matrix) then(n matrix) matrix {
	return matrix{
		m.a*n.a + m.b*n.c, m.a*n.b + m.b*n.d,
		m.c*n.a + m.d*n.c, m.c*n.b + m.d*n.d,
		m.e*n.a + m.f*n.c + n.e, m.e*n.b + m.f*n.d + n.f,
	}
}

// pdfState is the graphics state that q saves and Q restores.
type pdfState struct {
	page    matrix
	font    *pdfFont
	size    float64
	leading float64
	chars   float64 // extra space between characters
	words   float64 // extra space at blanks
	scale   float64
}

// pdfPage collects the text of a page in drawing order, with blanks and line ends according to the
// positions.
type pdfPage struct {
	doc   *pdfDocument
	out   strings.Builder
	now   pdfState
	saved []pdfState
	line  matrix // start of the line
	at    matrix // position of the next character
	forms int
	shown int
	// Position of the end of the last text, and its height.
	endX, endY, height float64
}

func newPDFPage(d *pdfDocument) *pdfPage {
	return &pdfPage{doc: d, now: pdfState{page: identity(), scale: 1}, line: identity(), at: identity()}
}

// run interprets a stream of operators.
func (p *pdfPage) run(contents, resources pdf.Value) {
	// Cache the fonts, because a lookup may decompress a part of the file.
	fonts := map[string]*pdfFont{}
	font := func(name string) *pdfFont {
		f, ok := fonts[name]
		if !ok {
			f = p.doc.font(resources, name)
			fonts[name] = f
		}
		return f
	}
	pdf.Interpret(contents, func(stack *pdf.Stack, op string) {
		args := operands(stack)
		if p.shown++; p.shown > maxShown || p.out.Len() > maxOutput {
			panic("page is too large")
		}
		switch {
		case op == "Tf" && len(args) >= 2:
			p.now.font, p.now.size = font(args[0].Name()), args[1].Float64()
		case op == "Do" && len(args) >= 1:
			p.form(resources.Key("XObject").Key(args[0].Name()), resources)
		case !p.state(op, args):
			p.text(op, args)
		}
	})
}

// state carries out an operator that changes the state, and reports whether op is one.
func (p *pdfPage) state(op string, args []pdf.Value) bool {
	switch {
	case op == "q":
		if len(p.saved) < maxSaved {
			p.saved = append(p.saved, p.now)
		}
	case op == "Q":
		if n := len(p.saved); n > 0 {
			p.now, p.saved = p.saved[n-1], p.saved[:n-1]
		}
	case op == "BT":
		p.line, p.at = identity(), identity()
	case op == "cm" && len(args) >= 6:
		p.now.page = matrixOf(args).then(p.now.page)
	case op == "TL" && len(args) >= 1:
		p.now.leading = args[0].Float64()
	case op == "Tc" && len(args) >= 1:
		p.now.chars = args[0].Float64()
	case op == "Tw" && len(args) >= 1:
		p.now.words = args[0].Float64()
	case op == "Tz" && len(args) >= 1:
		p.now.scale = args[0].Float64() / 100
	default:
		return false
	}
	return true
}

func (p *pdfPage) text(op string, args []pdf.Value) {
	switch {
	case (op == "Td" || op == "TD") && len(args) >= 2:
		if op == "TD" {
			p.now.leading = -args[1].Float64()
		}
		p.move(args[0].Float64(), args[1].Float64())
	case op == "Tm" && len(args) >= 6:
		p.line = matrixOf(args)
		p.at = p.line
	case op == "T*":
		p.move(0, -p.now.leading)
	case op == "Tj" && len(args) >= 1:
		p.show(args[0].RawString())
	case (op == "'" || op == `"`) && len(args) >= 1:
		p.move(0, -p.now.leading)
		p.show(args[len(args)-1].RawString())
	case op == "TJ" && len(args) >= 1:
		for i := range args[0].Len() {
			if v := args[0].Index(i); v.Kind() == pdf.String {
				p.show(v.RawString())
			} else {
				p.advance(-v.Float64() / 1000 * p.now.size * p.now.scale)
			}
		}
	}
}

func matrixOf(args []pdf.Value) matrix {
	n := func(i int) float64 { return args[len(args)-6+i].Float64() }
	return matrix{n(0), n(1), n(2), n(3), n(4), n(5)}
}

func (p *pdfPage) move(x, y float64) {
	p.line = matrix{a: 1, d: 1, e: x, f: y}.then(p.line)
	p.at = p.line
}

func (p *pdfPage) advance(x float64) {
	p.at = matrix{a: 1, d: 1, e: x}.then(p.at)
}

// form draws a form.
func (p *pdfPage) form(x, resources pdf.Value) {
	if x.Key("Subtype").Name() != "Form" || p.forms >= maxForms {
		return
	}
	if own := x.Key("Resources"); !own.IsNull() {
		resources = own
	}
	saved, line, at := p.now, p.line, p.at
	if m := x.Key("Matrix"); m.Len() == 6 {
		args := make([]pdf.Value, 6)
		for i := range args {
			args[i] = m.Index(i)
		}
		p.now.page = matrixOf(args).then(p.now.page)
	}
	p.forms++
	p.run(x, resources)
	p.forms--
	p.now, p.line, p.at = saved, line, at
}

// show draws a string at the current position.
func (p *pdfPage) show(s string) {
	if p.now.font == nil {
		return
	}
	text, width, codes, spaces := p.now.font.show(s)
	from := p.at.then(p.now.page)
	height := math.Abs(p.now.size) * math.Hypot(from.c, from.d)
	p.gap(from, height)
	p.out.WriteString(text)
	p.advance((width/1000*p.now.size + float64(codes)*p.now.chars + float64(spaces)*p.now.words) * p.now.scale)
	to := p.at.then(p.now.page)
	p.endX, p.endY, p.height = to.e, to.f, height
}

// gap writes the separator between the last text and one that starts at from.
func (p *pdfPage) gap(from matrix, height float64) {
	if p.out.Len() == 0 {
		return
	}
	size := max(height, p.height, 1)
	// Distances along the line and across it, for any direction of the line.
	long := math.Hypot(from.a, from.b)
	if long == 0 {
		return
	}
	dx, dy := from.e-p.endX, from.f-p.endY
	along := (dx*from.a + dy*from.b) / long
	across := math.Abs(dx*from.b-dy*from.a) / long
	written := p.out.String()
	last := written[len(written)-1]
	switch {
	case last == '\n':
	case across > 1.8*size:
		p.out.WriteString("\n\n")
	case across > 0.5*size:
		p.out.WriteByte('\n')
	case last != ' ' && (along > 0.18*size || along < -size):
		p.out.WriteByte(' ')
	}
}
