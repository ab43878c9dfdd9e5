package program

import (
	"bytes"
	"io"
	"unicode/utf8"

	"github.com/gogs/chardet"
	"golang.org/x/net/html/charset"
	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/unicode"
	"golang.org/x/text/transform"
)

const (
	// sample is how much of a body its charset is guessed from, in bytes.
	sample = 64 << 10
	// sure is what a guess has to have, of 100.
	sure = 20
)

// coding is what a body is decoded from.
type coding struct {
	encoding.Encoding
	name string
}

// codingOf finds out what a body is written in: by its byte order mark, then as
// UTF-8 where it is (other charsets do not look like that), then by what the
// host and then the page say, where the text bears it out, then by its looks.
func codingOf(b *body) coding {
	for _, mark := range []struct{ bytes, name string }{
		{"\xef\xbb\xbf", "utf-8"}, {"\xfe\xff", "utf-16be"}, {"\xff\xfe", "utf-16le"},
	} {
		if bytes.HasPrefix(b.data, []byte(mark.bytes)) {
			return named(mark.name)
		}
	}
	told := named(b.charset)
	if told.name == "utf-16be" || told.name == "utf-16le" {
		return told
	}
	if validText(b.data) && told.name != "iso-2022-jp" {
		return named("utf-8")
	}
	if told.Encoding != nil && told.name != "utf-8" {
		return told
	}
	head := b.data[:min(len(b.data), 1024)]
	if _, name, _ := charset.DetermineEncoding(head, "text/html"); name != "utf-8" && name != "windows-1252" {
		return named(name)
	}
	if guessed := guess(b.data); guessed.Encoding != nil {
		return guessed
	}
	if told.Encoding != nil {
		return told
	}
	return named("windows-1252")
}

// named is the coding of a name, without an Encoding where nobody knows it.
func named(label string) coding {
	e, name := charset.Lookup(label)
	switch {
	case e == nil || name == "replacement":
		return coding{}
	case name == "utf-8":
		// The one that is looked up lets invalid bytes through.
		e = unicode.UTF8
	}
	return coding{e, name}
}

// validText reports whether data is UTF-8, but for a character that was cut at
// its end, and is not all ASCII with escapes of other charsets.
func validText(data []byte) bool {
	for i := 1; i < utf8.UTFMax && i <= len(data); i++ {
		if c := data[len(data)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(data[len(data)-i:]) {
				data = data[:len(data)-i]
			}
			break
		}
	}
	return utf8.Valid(data) && !bytes.Contains(data, []byte("\x1b$"))
}

// guess takes a charset from the looks of a text.
func guess(data []byte) coding {
	// A guess needs letters: markup and ASCII say nothing.
	var odd []byte
	head := data[:min(len(data), sample)]
	for _, line := range bytes.Split(head, []byte("\n")) {
		if bytes.ContainsFunc(line, func(r rune) bool { return r >= utf8.RuneSelf || r == 0x1b }) {
			odd = append(append(odd, line...), '\n')
		}
	}
	if len(odd) == 0 {
		return coding{}
	}
	best, err := chardet.NewHtmlDetector().DetectBest(odd)
	if err != nil || best.Confidence < sure {
		return coding{}
	}
	found := named(best.Charset)
	if found.name == "utf-8" {
		// It is not, or validText would have said so.
		return coding{}
	}
	return found
}

// reader is data as UTF-8 without a byte order mark, invalid bytes replaced.
func (c coding) reader(data []byte) io.Reader {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	d := unicode.BOMOverride(c.NewDecoder())
	return transform.NewReader(bytes.NewReader(data), d)
}

// text is all of data as UTF-8.
func (c coding) text(data []byte) (string, error) {
	var b bytes.Buffer
	b.Grow(len(data) + bytes.MinRead)
	_, err := b.ReadFrom(c.reader(data))
	return b.String(), err
}
