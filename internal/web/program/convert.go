package program

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// maxOutput is the maximum size of a text in bytes. It keeps an Answer below web.MaxAnswer even if
// every byte is escaped.
const maxOutput = 10 << 20

// maxTitle is the maximum length of a title and of a byline in characters.
const maxTitle = 300

// converted is the result of converting a body.
type converted struct {
	text          string
	title, byline string
	form          string
	mediaType     string
	charset       string
	cut           bool
}

// into adds the result to an Answer, with at most limit characters of text; 0 means all.
func (c *converted) into(a *web.Answer, limit int) {
	text, cut := web.Plain(c.text), c.cut
	if len(text) > maxOutput {
		text, cut = strings.ToValidUTF8(text[:maxOutput], ""), true
	}
	if limit > 0 {
		var short bool
		text, short = clip.Runes(text, limit)
		cut = cut || short
	}
	a.Text, a.Truncated = text, a.Truncated || cut
	a.Title, a.Byline = oneLine(c.title, maxTitle), oneLine(c.byline, maxTitle)
	a.MediaType, a.Charset, a.Form = c.mediaType, c.charset, c.form
}

// Kinds of bodies.
const (
	kindPage  = "page"
	kindPDF   = "pdf"
	kindText  = "text"
	kindOther = "other"
)

// convert converts a body of the page at URL at to form.
func convert(b *body, form, at string) (*converted, error) {
	media, kind := kindOf(b)
	switch kind {
	case kindPDF:
		c, err := pdfText(b)
		if err != nil {
			return nil, err
		}
		c.mediaType, c.form = media, web.Text
		return c, nil
	case kindOther:
		return nil, faultf(web.FaultContent, "type %s cannot be converted to text: use the form raw", media)
	}
	code := codingOf(b)
	if kind == kindText {
		text, err := code.text(b.data)
		if err != nil {
			return nil, faultf(web.FaultContent, "decode text from %s: %v", code.name, err)
		}
		return &converted{text: text, form: web.Text, mediaType: media, charset: code.name}, nil
	}
	base, err := url.Parse(at)
	if err != nil {
		return nil, err
	}
	c, err := convertPage(b, code, form, base)
	if err != nil {
		return nil, err
	}
	c.mediaType, c.charset = media, code.name
	return c, nil
}

// kindOf returns media type and kind of a body. If the type is missing or does not fit, it uses the
// start of the body.
func kindOf(b *body) (media, kind string) {
	head := b.data[:min(len(b.data), 1024)]
	media = b.mediaType
	switch media {
	case "", "application/octet-stream", "binary/octet-stream", "application/x-download", "application/unknown":
		media, _ = mediaType(http.DetectContentType(head))
	}
	switch {
	case bytes.HasPrefix(bytes.TrimLeft(head, " \t\r\n"), []byte("%PDF-")) || media == "application/pdf" ||
		media == "application/x-pdf":
		return "application/pdf", kindPDF
	case !textType(media) || binary(head) && !strings.HasPrefix(b.charset, "utf-16"):
		if textType(media) {
			media, _ = mediaType(http.DetectContentType(head))
		}
		return media, kindOther
	case media == "text/html" || media == "application/xhtml+xml":
		return media, kindPage
	}
	return media, kindText
}

func textType(media string) bool {
	if strings.HasPrefix(media, "image/") {
		return false
	}
	kind, sub, _ := strings.Cut(media, "/")
	if kind == "text" || strings.HasSuffix(sub, "+json") || strings.HasSuffix(sub, "+xml") {
		return true
	}
	switch sub {
	case "json", "xml", "javascript", "ecmascript", "x-javascript", "x-ndjson", "ndjson", "jsonl", "yaml", "x-yaml",
		"toml", "sql", "graphql", "x-sh", "x-httpd-php", "rtf", "x-www-form-urlencoded", "manifest+json", "xml-dtd",
		"csv":
		return kind == "application"
	}
	return false
}

// binary reports whether head is not text: it has NUL bytes and no byte order mark.
func binary(head []byte) bool {
	for _, mark := range []string{"\xfe\xff", "\xff\xfe"} {
		if bytes.HasPrefix(head, []byte(mark)) {
			return false
		}
	}
	return bytes.IndexByte(head, 0) >= 0 && !(utf8.Valid(head) && bytes.Count(head, []byte{0}) < 4)
}
