package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzRedact looks for a text that shows a known value, for a document that changes its shape, and
// for a value of one caller that changes what others or an approver see.
func FuzzRedact(f *testing.F) {
	f.Add("correct horse", `{"a":"correct horse"}`, uint8(0))
	f.Add(`a"b\c<d>`, `["x",{"token":1}]`, uint8(1))
	f.Add("987654", `{"n":98765}`, uint8(3))
	f.Add("redact", `x`, uint8(3))
	f.Add(`{"comm`, `{"command":"rm -r x","env":{"A_TOKEN":"{\"comm"}}`, uint8(40))
	f.Add("[redacted 6 bytes", `{"password":"x","argv":["--token","a1b2c3d4"]}`, uint8(14))
	f.Add("aaaaaa", `{"a":"aaaaaaaaaaaaaaaa\u0061aaaa\ud83d","n":-1e9}`, uint8(9))
	f.Fuzz(func(t *testing.T, secret, text string, place uint8) {
		secret = strings.TrimSpace(secret)
		if strings.ContainsRune(secret, 0) { // stands for a marker below
			return
		}
		r, bare := NewRedactor(), NewRedactor()
		bare.key = r.key
		own(t, r, "ann", secret)
		known := compileValues([]string{secret})
		at := int(place) % (len(text) + 1)
		for _, s := range written(secret) {
			in := text[:at] + s + text[at:]
			gone(t, known, secret, textFor(r, "ann", in))
			for _, raw := range []string{in, text, string(quote(in)), `{"k":` + string(quote(in)) + `}`} {
				out := jsonFor(r, "ann", raw)
				sameShape(t, raw, out)
				for _, s := range decoded(t, out) {
					gone(t, known, secret, s)
				}
				if got, want := jsonFor(r, "bob", raw), jsonFor(bare, "bob", raw); got != want {
					t.Fatalf("with a value of ann's, %q of bob becomes %q, want %q", raw, got, want)
				}
				for _, caller := range []string{"ann", "bob"} {
					got, want := r.ForApprover(caller, []byte(raw)), bare.ForApprover(caller, []byte(raw))
					if !bytes.Equal(got, want) {
						t.Fatalf("with a value of ann's, an approver reads %q as %q, want %q", raw, got, want)
					}
					sameShape(t, raw, string(got))
				}
				if in, _, _ := inputOf(r, []byte(raw)); !json.Valid(in) || !utf8.Valid(in) || len(in) > MaxInput {
					t.Fatalf("%q is recorded as %q, want valid JSON in UTF-8 of at most %d bytes", raw, in, MaxInput)
				}
			}
		}
	})
}

// gone fails if a form of the secret is left. A marker may look like one.
func gone(t *testing.T, known *values, secret, out string) {
	t.Helper()
	rest := markers.ReplaceAllString(out, "\x00")
	if spans := known.find(nil, &text{s: rest}); len(spans) > 0 {
		t.Fatalf("%q is left in %q, want it redacted", secret, out)
	}
}

// tokens returns a document's tokens, with every string and number as "leaf".
func tokens(raw string) (all []any, ok bool) {
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all, true
		}
		if err != nil {
			return nil, false
		}
		switch token.(type) {
		case string, json.Number:
			token = "leaf"
		}
		all = append(all, token)
	}
}

// sameShape fails if out is invalid, or has another shape than raw.
func sameShape(t *testing.T, raw, out string) {
	t.Helper()
	if !json.Valid([]byte(out)) || !utf8.ValidString(out) {
		t.Fatalf("%q becomes %q, want valid JSON in UTF-8", raw, out)
	}
	want, ok := tokens(raw)
	if !ok || !json.Valid([]byte(raw)) {
		want = []any{"leaf"}
	}
	got, _ := tokens(out)
	if len(got) != len(want) {
		t.Fatalf("%q becomes %q: %d tokens, want %d", raw, out, len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("%q becomes %q: token %d is %v, want %v", raw, out, i, got[i], want[i])
		}
	}
}

// decoded returns all strings of a document, and its numbers.
func decoded(t *testing.T, raw string) (all []string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(raw))
	d.UseNumber()
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return all
		}
		switch token := token.(type) {
		case string:
			all = append(all, token)
		case json.Number:
			all = append(all, token.String())
		}
		if err != nil {
			t.Fatalf("decoding %q: %v", raw, err)
		}
	}
}
