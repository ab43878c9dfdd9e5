package clip

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// The tables 3-8 to 3-11 of the Unicode Standard, where ? is U+FFFD.
func TestValidReplacesEachMaximalPart(t *testing.T) {
	for in, want := range map[string]string{
		"":                  "",
		"a\u20ac\U0001f600": "a\u20ac\U0001f600",
		"\uFFFD\x80":        "??",
		"a\xF1\x80\x80\xE1\x80\xC2b\x80c\x80\xBFd": "a???b?c??d",
		"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82A":        "????????A",
		"\xED\xA0\x80\xED\xBF\xBF\xED\xAFA":        "????????A",
		"\xF4\x91\x92\x93\xFFA\x80\xBFB":           "?????A??B",
		"\xE1\x80\xE2\xF0\x91\x92\xF1\xBFA":        "????A",
		"\xE2\x82":                                 "?",
	} {
		want = strings.ReplaceAll(want, "?", "\uFFFD")
		if got := Valid(in); got != want {
			t.Errorf("Valid(%q) = %q, want %q", in, got, want)
		}
		if got, want := Count([]byte(in)), utf8.RuneCountInString(want); got != want {
			t.Errorf("Count(%q) = %d, want %d", in, got, want)
		}
	}
}

func FuzzValid(f *testing.F) {
	f.Add("a\xF1\x80\x80\xE1\x80\xC2b")
	f.Fuzz(func(t *testing.T, s string) {
		got := Valid(s)
		if !utf8.ValidString(got) {
			t.Errorf("Valid(%q) = %q, which is not valid UTF-8", s, got)
		}
		if n := Count([]byte(s)); n != utf8.RuneCountInString(got) {
			t.Errorf("Count(%q) = %d, want %d, the characters of Valid", s, n, utf8.RuneCountInString(got))
		}
		// A part is at most 3 bytes long, and no byte is lost.
		if strings.Count(got, "\uFFFD")*3+len(strings.ReplaceAll(got, "\uFFFD", "")) < len(s)-3*strings.Count(s, "\uFFFD") {
			t.Errorf("Valid(%q) = %q: bytes are missing", s, got)
		}
	})
}
