package program

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// pdfFile returns a PDF with objects, the first of which is the catalog.
func pdfFile(trailer string, objects ...string) []byte {
	var b bytes.Buffer
	b.WriteString("%PDF-1.4\n")
	at := make([]int, 0, len(objects))
	for i, o := range objects {
		at = append(at, b.Len())
		fmt.Fprintf(&b, "%d 0 obj\n%s\nendobj\n", i+1, o)
	}
	table := b.Len()
	fmt.Fprintf(&b, "xref\n0 %d\n0000000000 65535 f \n", len(objects)+1)
	for _, n := range at {
		fmt.Fprintf(&b, "%010d 00000 n \n", n)
	}
	fmt.Fprintf(&b, "trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n", len(objects)+1, trailer, table)
	return b.Bytes()
}

func pdfStream(dict, data string, pack bool) string {
	if pack {
		var b bytes.Buffer
		w := zlib.NewWriter(&b)
		w.Write([]byte(data))
		w.Close()
		data, dict = b.String(), dict+" /Filter /FlateDecode"
	}
	return fmt.Sprintf("<< %s /Length %d >>\nstream\n%s\nendstream", dict, len(data), data)
}

// samplePDF returns a PDF of two pages: one with a simple font, and one with a form whose font has
// only a ToUnicode table.
func samplePDF(title string) []byte {
	const cmap = "/CIDInit /ProcSet findresource begin 12 dict begin begincmap\n1 begincodespacerange <0000> " +
		"<ffff> endcodespacerange\n" +
		"1 beginbfchar <0001> <00c4> endbfchar\n2 beginbfrange <0002> <0004> <0062> <0005> <0006> [<fb01> " +
		"<d83dde00>] endbfrange\nendcmap"
	return pdfFile("/Info 9 0 R",
		"<< /Type /Catalog /Pages 2 0 R >>",
		"<< /Type /Pages /Kids [3 0 R 4 0 R] /Count 2 /Resources << /Font << /F1 5 0 R /F2 6 0 R >> /XObject << "+
			"/X 8 0 R >> >> >>",
		"<< /Type /Page /Parent 2 0 R /Contents 10 0 R >>",
		"<< /Type /Page /Parent 2 0 R /Contents 11 0 R >>",
		"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
		"<< /Type /Font /Subtype /Type0 /BaseFont /X /Encoding /Identity-H /ToUnicode 7 0 R /DescendantFonts [<< "+
			"/DW 500 >>] >>",
		pdfStream("", cmap, true),
		pdfStream("/Type /XObject /Subtype /Form",
			"BT /F2 10 Tf 1 0 0 1 50 700 Tm <0001000200030004> Tj <00050006> Tj ET", true),
		"<< /Title ("+title+") >>",
		pdfStream("",
			"BT /F1 12 Tf 50 700 Td (Caf\\351 one) Tj 100 0 Td (far) Tj 0 -14 Td [(ke) 20 (rned) -400 (word)] TJ "+
				"0 -60 Td (paragraph) Tj ET", true),
		pdfStream("", "q 1 0 0 1 0 0 cm /X Do Q", false),
	)
}

func TestPDFs(t *testing.T) {
	got, err := convert(&body{data: samplePDF("On brass"), mediaType: "application/pdf"}, web.Markdown,
		"https://site.example/")
	if err != nil {
		t.Fatal(err)
	}
	if want := "Café one far\nkerned word\n\nparagraph\n\nÄbcdfi😀"; got.text != want || got.title != "On brass" ||
		got.form != web.Text {
		t.Errorf("convert = %q with title %q as %s; want %q, On brass, %s", got.text, got.title, got.form, want, web.Text)
	}
	later := bytes.Replace(samplePDF("x"), []byte("%PDF-1.4"), []byte("%PDF-2.0"), 1)
	if got, err := convert(&body{data: append(later, "\r\n<!-- trailing -->"...)}, web.Text,
		"https://site.example/"); err != nil || !strings.Contains(got.text, "kerned") {
		t.Errorf("convert of PDF 2.0 = %+v, %v; want kerned in the text", got, err)
	}
	whole := samplePDF("x")
	for name, c := range map[string]struct {
		data []byte
		says string
	}{
		"empty":    {[]byte("%PDF-1.4 nothing"), "damaged"},
		"cut":      {whole[:len(whole)/2], "damaged"},
		"no table": {bytes.Replace(whole, []byte("startxref"), []byte("startxxxx"), 1), "damaged"},
		"huge": {bytes.Replace(whole, []byte("/Size 12"), []byte("/Size 4000000000"), 1),
			"object numbers"},
		"huge table": {bytes.Replace(whole, []byte("xref\n0 12"), []byte("xref\n90000000 12"), 1),
			"object numbers"},
		"encrypted": {pdfFile("/Encrypt << /Filter /Standard /V 5 /R 6 >> /ID [(a) (b)]", "<< >>"), "encryption"},
		"images only": {pdfFile("", "<< /Pages 2 0 R >>", "<< /Kids [3 0 R] >>", "<< /Contents 4 0 R >>",
			pdfStream("", "q Q", false)), "no text"},
		"a circular page tree": {pdfFile("", "<< /Pages 2 0 R >>", "<< /Kids [2 0 R 2 0 R] >>"), "no text"},
		"circular forms": {pdfFile("", "<< /Pages 2 0 R >>",
			"<< /Contents 3 0 R /Resources << /XObject << /X 3 0 R >> >> >>",
			pdfStream("/Subtype /Form", "/X Do /X Do", false)), "no text"},
	} {
		_, err := convert(&body{data: c.data, mediaType: "application/pdf"}, web.Text, "https://site.example/")
		if err == nil {
			t.Errorf("%s: convert succeeded, want a fault", name)
			continue
		}
		faulty(t, name, &web.Answer{Fault: faultOf(err)}, web.FaultContent, c.says)
	}
	_, err = convert(&body{data: whole, cut: true}, web.Text, "https://site.example/")
	faulty(t, "cut off", &web.Answer{Fault: faultOf(err)}, web.FaultContent, "larger")
}
