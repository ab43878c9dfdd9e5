package clip

import "testing"

func TestText(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aäb", 2, "a…"}, {"aäb", 3, "aä…"}, {"a\xffb", 9, "a\uFFFDb"},
		{"\x80\x80\x80", 2, "…"}, {"abc", 0, "…"},
	} {
		if got := Text(c.in, c.n); got != c.want {
			t.Errorf("Text(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestElide(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"aäb", 2, "a…"}, {"aäb", 3, "aä…"}, {"a\xffb", 3, "a\xffb"},
		{"a\xffbc", 3, "ab…"}, {"ä\x80", 2, "ä…"},
	} {
		if got := Elide(c.in, c.n); got != c.want {
			t.Errorf("Elide(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}

func TestRunes(t *testing.T) {
	for _, c := range []struct {
		in   string
		n    int
		want string
		cut  bool
	}{
		{"", 0, "", false}, {"aäb", 3, "aäb", false}, {"aäb", 2, "aä", true}, {"äb", 0, "", true}, {"ää", 3, "ää", false},
	} {
		if got, cut := Runes(c.in, c.n); got != c.want || cut != c.cut {
			t.Errorf("Runes(%q, %d) = %q, %v, want %q, %v", c.in, c.n, got, cut, c.want, c.cut)
		}
	}
}
