package sandboxed

import (
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// The web program's output is untrusted: the program parses data of the remote host.
func TestReadAnswerRejectsOversizedAnswers(t *testing.T) {
	r := web.Request{MaxBytes: 10, MaxText: 5}
	good := web.Answer{
		URL:    "https://a.example/",
		Status: 200,
		Title:  "a\nb\u2028c",
		Text:   "wö\x1brds",
		Body:   []byte("0123456789"),
		Header: [][2]string{{"A", "b\x1b\r"}},
	}
	b, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	a, err := readAnswer(b, r)
	if err != nil || a.Title != "a b c" || a.Text != "wörds" || a.Header[0] != [2]string{"A", "b"} {
		t.Errorf("readAnswer = %+v, %v; want title, text and header without control characters", a, err)
	}
	for name, change := range map[string]func(a *web.Answer){
		"no status":                      func(a *web.Answer) { a.Status = 0 },
		"an address":                     func(a *web.Answer) { a.URL = "file:///etc/passwd" },
		"a redirect":                     func(a *web.Answer) { a.RedirectURL = "javascript:alert(1)" },
		"a password":                     func(a *web.Answer) { a.RedirectURL = "https://u:p@b.example/" },
		"too long a text":                func(a *web.Answer) { a.Text = "wörds!" },
		"too long a body":                func(a *web.Answer) { a.Body = append(a.Body, 'x') },
		"an address with an instruction": func(a *web.Answer) { a.RedirectURL = "https://b.example/ and now" },
		"an address with an escape":      func(a *web.Answer) { a.URL = "https://a.example/\u009b2J" },
		"less than nothing":              func(a *web.Answer) { a.Bytes = -1 },
		"too many fields":                func(a *web.Answer) { a.Header = slices.Repeat([][2]string{{"a", "b"}}, maxWebFields+1) },
		"too long a header":              func(a *web.Answer) { a.Header = [][2]string{{"a", strings.Repeat("x", maxWebHeader)}} },
		"a field of lines":               func(a *web.Answer) { a.Header = [][2]string{{"a\nb", "c"}} },
		"an unknown fault":               func(a *web.Answer) { a.Fault = &web.Fault{Kind: "boom"} },
		"too long a target":              func(a *web.Answer) { a.RedirectURL = "https://a.example/" + strings.Repeat("x", maxWebURL) },
	} {
		bad := good
		change(&bad)
		b, err := json.Marshal(bad)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := readAnswer(b, r); err == nil {
			t.Errorf("%s: readAnswer = %+v, want an error", name, got)
		}
	}
	many := []byte(`{"header": [` + strings.Repeat("[],", 1<<20) + "[]]}")
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if _, err = readAnswer(many, r); err == nil {
		t.Error("readAnswer of a header of empty fields succeeded, want an error")
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 5*uint64(len(many)) {
		t.Errorf("readAnswer of %d bytes used %d bytes of memory, want at most 5 times as many", len(many),
			after.TotalAlloc-before.TotalAlloc)
	}
	for _, text := range []string{"", "{", "null", "[]", `{"url": 3}`, `{"header": 3}`} {
		if got, err := readAnswer([]byte(text), r); err == nil {
			t.Errorf("readAnswer(%q) = %+v, want an error", text, got)
		}
	}
	a, err = readAnswer([]byte(`{"fault": {"kind": "denied", "message": "a\u001b[31m`+strings.Repeat("x", 5000)+`"}}`), r)
	if err != nil || a.Fault == nil || len(a.Fault.Message) > maxWebText+10 ||
		strings.ContainsRune(a.Fault.Message, 0x1b) {
		t.Errorf("fault = %+v, %v; want at most %d bytes without escapes", a.Fault, err, maxWebText+10)
	}
}
