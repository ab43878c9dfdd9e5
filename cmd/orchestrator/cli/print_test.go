package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestTableEscapesControlCharacters(t *testing.T) {
	for in, want := range map[string]string{
		"plain ünï 日本":  "plain ünï 日本",
		"\x1b[2Jred":    `\x1b[2Jred`,
		"a\nb\tc":       `a\nb\tc`,
		"bad\xffbyte":   `bad\xffbyte`,
		"\u202egnp.x":   `\u202egnp.x`,
		"\u200bzero":    `\u200bzero`,
		"\u009b31m":     `\u009b31m`,
		"tag\U000e0041": `tag\U000e0041`,
	} {
		if got := Escape(in); got != want {
			t.Errorf("%q is shown as %q, want %q", in, got, want)
		}
	}
	var b strings.Builder
	tb := &Table{Head: []string{"A", "B"}}
	tb.Add("x\ty\n", "")
	want := "A        B\nx\\ty\\n   -\n"
	if err := tb.Write(&b); err != nil || b.String() != want {
		t.Errorf("table = %q, %v; want %q", b.String(), err, want)
	}
}

func TestJSONEscapesControlCharacters(t *testing.T) {
	const hostile = "a\x1b[31m\u009b31m\u202ertl\u2028\x7f\U000e0041é漢😀\xff<&"
	var want, got string
	plain, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(plain, &want); err != nil {
		t.Fatal(err)
	}
	for size := 1; size < 8; size++ { // pieces may end anywhere
		var out bytes.Buffer
		w := &JSONWriter{W: &out}
		for piece := range slices.Chunk(plain, size) {
			if n, err := w.Write(piece); n != len(piece) || err != nil {
				t.Fatalf("Write = %d, %v; want %d", n, err, len(piece))
			}
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || got != want {
			t.Errorf("pieces of %d: text = %q, %v; want %q", size, got, err, want)
		}
		if s := out.String(); Escape(s) != s || !strings.Contains(s, "é漢😀") {
			t.Errorf("pieces of %d: output = %q, want only control characters escaped", size, s)
		}
	}
	var out bytes.Buffer
	a := &App{Stdout: &out}
	if err := a.PrintJSON(map[string]string{"x": hostile}); err != nil || out.String() != EscapeText(out.String()) {
		t.Errorf("PrintJSON = %q, %v; want no characters to escape", out.String(), err)
	}
}
