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
	// sample is how much of a body is used to guess its charset, in bytes.
	sample = 64 << 10
	// sure is the minimum confidence of a guess, out of 100.
	sure = 20
)

// coding is the character encoding of a body.
type coding struct {
	encoding.Encoding
	name string
}

// codingOf determines the charset of a body: by its byte order mark; as UTF-8 if it is valid; by
// the header and then the page, if the text is consistent; and last by a guess.
func codingOf(b *body) coding {
	for _, mark := range []struct{ bytes, name string }{
		{"\xef\xbb\xbf", "utf-8"}, {"\xfe\xff", "utf-16be"}, {"\xff\xfe", "utf-16le"},
	} {
		if bytes.HasPrefix(b.data, []byte(mark.bytes)) {
			return codingNamed(mark.name)
		}
	}
	declared := codingNamed(b.charset)
	if declared.name == "utf-16be" || declared.name == "utf-16le" {
		return declared
	}
	if validText(b.data) && declared.name != "iso-2022-jp" {
		return codingNamed("utf-8")
	}
	if declared.Encoding != nil && declared.name != "utf-8" {
		return declared
	}
	head := b.data[:min(len(b.data), 1024)]
	if _, name, _ := charset.DetermineEncoding(head, "text/html"); name != "utf-8" && name != "windows-1252" {
		return codingNamed(name)
	}
	if guessed := guess(b.data); guessed.Encoding != nil {
		return guessed
	}
	if declared.Encoding != nil {
		return declared
	}
	return codingNamed("windows-1252")
}

// codingNamed returns the coding with a name. Encoding is nil if the name is unknown.
func codingNamed(label string) coding {
	e, name := charset.Lookup(label)
	switch {
	case e == nil || name == "replacement":
		return coding{}
	case name == "utf-8":
		// The Encoding of charset.Lookup passes invalid bytes.
		e = unicode.UTF8
	}
	return coding{e, name}
}

// validText reports whether data is UTF-8, except for a truncated last character, and has no
// escapes of other charsets.
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

// guess guesses a charset from a text.
func guess(data []byte) coding {
	// Use only lines with non-ASCII characters: the others carry no information.
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
	found := codingNamed(best.Charset)
	if found.name == "utf-8" {
		// validText would have accepted it.
		return coding{}
	}
	return found
}

// reader returns data as UTF-8 without a byte order mark. Invalid bytes are replaced.
func (c coding) reader(data []byte) io.Reader {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	d := unicode.BOMOverride(c.NewDecoder())
	return transform.NewReader(bytes.NewReader(data), d)
}

// text returns data as UTF-8.
func (c coding) text(data []byte) (string, error) {
	var b bytes.Buffer
	b.Grow(len(data) + bytes.MinRead)
	_, err := b.ReadFrom(c.reader(data))
	return b.String(), err
}
