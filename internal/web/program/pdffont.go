package program

import (
	"strings"
	"unicode/utf16"

	"github.com/ledongthuc/pdf"
)

// maxCodes is the maximum number of codes of a font.
const maxCodes = 70_000

// pdfFont converts the codes of strings to text and widths.
type pdfFont struct {
	// wide fonts have two-byte codes.
	wide    bool
	unicode map[string]string // ToUnicode table; nil if the font has none
	encoder pdf.TextEncoding
	known   map[string]string // cached results of encoder
	widths  map[int]float64   // by code, in thousandths of the font size
	other   float64           // width of all other codes
}

// font returns the font with this name. It is read once, even if several pages use it.
func (d *pdfDocument) font(resources pdf.Value, name string) *pdfFont {
	v := resources.Key("Font").Key(name)
	// The text of the value contains the references of its parts.
	key := v.String()
	if f, ok := d.fonts[key]; ok && len(key) < 64<<10 {
		return f
	}
	f := &pdfFont{known: map[string]string{}, widths: map[int]float64{}, other: 500}
	if !finishes(func() { f.read(v) }) && f.encoder == nil {
		f.wide = v.Key("Subtype").Name() == "Type0"
	}
	if len(d.fonts) < 2000 {
		d.fonts[key] = f
	}
	return f
}

func (f *pdfFont) read(v pdf.Value) {
	f.wide = v.Key("Subtype").Name() == "Type0"
	if to := v.Key("ToUnicode"); to.Kind() == pdf.Stream {
		f.unicode = map[string]string{}
		finishes(func() { readCMap(to, v, f.unicode) })
		if len(f.unicode) == 0 {
			f.unicode = nil
		}
	}
	if f.wide {
		f.wideWidths(v.Key("DescendantFonts").Index(0))
	} else {
		first := int(v.Key("FirstChar").Int64())
		w := v.Key("Widths")
		for i := range min(w.Len(), 256) {
			f.widths[first+i] = w.Index(i).Float64()
		}
	}
	font := pdf.Font{V: v}
	if f.unicode == nil && (!f.wide || strings.HasPrefix(v.Key("Encoding").Name(), "Uni")) {
		f.encoder = font.Encoder()
	}
}

// wideWidths reads entries of the forms "code [w w w]" and "first last w".
func (f *pdfFont) wideWidths(v pdf.Value) {
	f.other = 1000
	if dw := v.Key("DW"); dw.Kind() == pdf.Integer {
		f.other = dw.Float64()
	}
	w := v.Key("W")
	for i := 0; i+1 < w.Len() && len(f.widths) < maxCodes; {
		first := int(w.Index(i).Int64())
		if list := w.Index(i + 1); list.Kind() == pdf.Array {
			for j := range min(list.Len(), maxCodes) {
				f.widths[first+j] = list.Index(j).Float64()
			}
			i += 2
			continue
		}
		last, width := int(w.Index(i+1).Int64()), w.Index(i+2).Float64()
		for c := first; c <= last && c-first < maxCodes; c++ {
			f.widths[c] = width
		}
		i += 3
	}
}

// show returns the text of a string, its width in thousandths of the font size, and the number of
// codes and spaces.
func (f *pdfFont) show(s string) (text string, width float64, codes, spaces int) {
	step := 1
	if f.wide {
		step = 2
	}
	var b strings.Builder
	for ; len(s) >= step; s = s[step:] {
		code := s[:step]
		n := int(code[0])
		if f.wide {
			n = n<<8 | int(code[1])
		}
		w, ok := f.widths[n]
		if !ok {
			w = f.other
		}
		width += w
		codes++
		if code == " " {
			spaces++
		}
		b.WriteString(f.decode(code))
	}
	return b.String(), width, codes, spaces
}

func (f *pdfFont) decode(code string) string {
	if f.unicode != nil {
		if s, ok := f.unicode[code]; ok {
			return s
		}
		if f.wide || len(code) == 1 && (code[0] < ' ' || code[0] > '~') {
			return ""
		}
		return code
	}
	if f.encoder == nil {
		return ""
	}
	s, ok := f.known[code]
	if !ok {
		finishes(func() { s = ligatures().Replace(f.encoder.Decode(code)) })
		f.known[code] = s
	}
	return s
}

// ligatures returns a replacer of ligatures by letters, so that words can be found.
func ligatures() *strings.Replacer {
	return strings.NewReplacer("ﬀ", "ff", "ﬁ", "fi", "ﬂ", "fl", "ﬃ", "ffi", "ﬄ", "ffl", "ﬅ", "st", "ﬆ", "st",
		"\u00ad", "-")
}

// readCMap reads a ToUnicode stream into to. Other definitions of the stream go into the dictionary
// scratch.
func readCMap(stream, scratch pdf.Value, to map[string]string) {
	pdf.Interpret(stream, func(stack *pdf.Stack, op string) {
		args := operands(stack)
		switch op {
		case "findresource":
			stack.Push(scratch) // for the following begin
		case "endbfchar":
			for i := 0; i+1 < len(args) && len(to) < maxCodes; i += 2 {
				to[args[i].RawString()] = fromUTF16(args[i+1].RawString())
			}
		case "endbfrange":
			for i := 0; i+2 < len(args); i += 3 {
				readRange(args[i].RawString(), args[i+1].RawString(), args[i+2], to)
			}
		}
	})
}

// operands removes and returns the operands of an operator.
func operands(stack *pdf.Stack) []pdf.Value {
	args := make([]pdf.Value, stack.Len())
	for i := len(args) - 1; i >= 0; i-- {
		args[i] = stack.Pop()
	}
	return args
}

func readRange(lo, hi string, dst pdf.Value, to map[string]string) {
	if len(lo) != len(hi) || len(lo) == 0 || len(lo) > 2 {
		return
	}
	first, last := codeOf(lo), codeOf(hi)
	units := dst.RawString()
	for c := first; c <= last && len(to) < maxCodes; c++ {
		code := string([]byte{byte(c >> 8), byte(c)})[2-len(lo):]
		if dst.Kind() == pdf.Array {
			to[code] = fromUTF16(dst.Index(c - first).RawString())
			continue
		}
		if len(units) < 2 {
			return
		}
		// The last unit is incremented with the code.
		n := codeOf(units[len(units)-2:]) + c - first
		to[code] = fromUTF16(units[:len(units)-2] + string([]byte{byte(n >> 8), byte(n)}))
	}
}

func codeOf(s string) int {
	n := 0
	for i := range len(s) {
		n = n<<8 | int(s[i])
	}
	return n
}

func fromUTF16(s string) string {
	units := make([]uint16, 0, len(s)/2)
	for ; len(s) >= 2; s = s[2:] {
		units = append(units, uint16(s[0])<<8|uint16(s[1]))
	}
	return ligatures().Replace(string(utf16.Decode(units)))
}
