package audit

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// naive marks the bytes of s that one of the texts covers.
func naive(s string, texts []string) []bool {
	covered := make([]bool, len(s))
	for _, f := range texts {
		for i := 0; i+len(f) <= len(s); i++ {
			if s[i:i+len(f)] == f {
				for j := range len(f) {
					covered[i+j] = true
				}
			}
		}
	}
	return covered
}

func TestValuesMatchNaiveSearch(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab"[r.IntN(2)]
		}
		return string(b)
	}
	for range 300 {
		list := make([]string, 1+r.IntN(60))
		for i := range list {
			list[i] = strings.Repeat("a", r.IntN(8)) + word(6+r.IntN(40))
		}
		texts := make([]string, 0, 20*len(list))
		for _, v := range list {
			texts = append(texts, encodedForms(v)...)
		}
		s := word(r.IntN(300)) + list[0] + word(r.IntN(100)) + list[len(list)-1]
		want := naive(s, texts)
		got := make([]bool, len(s))
		for _, p := range compileValues(list).find(nil, &text{s: s}) {
			for i := p.from; i < p.to; i++ {
				got[i] = true
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("values %q in %q:\n got %v\nwant %v", list, s, got, want)
		}
	}
}

func TestLongValueIsFoundCompletely(t *testing.T) {
	for _, n := range []int{maxForm, maxForm + 1, 2*maxForm - 1, 2 * maxForm, 2*maxForm + 1, 5*maxForm + 7} {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte('a' + i*i%23)
		}
		r := NewRedactor()
		own(t, r, "ann", string(b))
		for name, s := range map[string]string{"as it is": string(b), "in hex": fmt.Sprintf("%x", b)} {
			want := fmt.Sprintf("<[redacted %d bytes ", len(s))
			if got := textFor(r, "ann", "<"+s+">"); !strings.HasPrefix(got, want) || !strings.HasSuffix(got,
				"]>") || len(got) > 80 {
				t.Errorf("a value of %d bytes %s becomes %.200s, want %s...]> of at most 80 bytes", n, name, got, want)
			}
		}
	}
}

// soon fails unless do returns within hundreds of times the time it needs.
func soon(t *testing.T, what string, do func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s takes over 10s, want less", what)
	}
}

// Values with a common prefix, and texts made of it, cost the most.
func TestValuesWithSharedPrefixTakeLinearTime(t *testing.T) {
	for name, value := range map[string]func(i int) string{
		"six bytes":   func(i int) string { return fmt.Sprintf("prefix%06d", i) },
		"all but one": func(i int) string { return "prefix" + strings.Repeat("a", 200) + fmt.Sprintf("%06d", i) },
		"nested":      func(i int) string { return strings.Repeat("a", 6+i%4090) },
		"nested late": func(i int) string { return strings.Repeat("a", 6+i%4090) + "b" },
	} {
		list := make([]string, 2000)
		for i := range list {
			list[i] = value(i)
		}
		r := NewRedactor()
		for _, v := range list {
			r.Add(v)
		}
		soon(t, name+": compile", func() { r.shared() })
		for _, part := range []string{"prefix", "prefix" + strings.Repeat("a", 200), "a", list[7]} {
			s := strings.Repeat(part, 1<<18/len(part))
			soon(t, name+": search", func() { textFor(r, "", s) })
		}
	}
}

// Each of these texts would be slow if a pattern read the same bytes repeatedly.
func TestSearchTakesLinearTime(t *testing.T) {
	r := NewRedactor()
	r.Add("aaaaaaaaaaaaaaaa")
	key := "-----BEGIN PRIVATE KEY "
	for _, part := range []string{
		"a", "{\"a\":", "[\"-token\",\"a\",", "://", "=", ":", "-", "-u ", "token=", "token='", `token=\\\"`,
		"--token ",
		"sk-", "eyJ", "eyJ.", "eyJ-", "bearer ",
		"-----BEGIN ", key, key + "sk-" + strings.Repeat("a", 20) + " ", "%20", `\`, `"`, "[", "{", `{"token":`,
		"password: \\'", "bearer+",
		"cookie:", "token=$(", "token=$A", "-u/", "://a:", "?key=", "--secret=", `"token":"`, `token="\"\\\"\\\\\"`,
	} {
		s := strings.Repeat(part, 1<<19/len(part))
		soon(t, fmt.Sprintf("%q in a text", part), func() { textFor(r, "", s) })
		soon(t, fmt.Sprintf("%q for an approver", part), func() { r.ForApprover("", json.RawMessage(quote(s))) })
		soon(t, fmt.Sprintf("%q as input", part), func() { inputOf(r, []byte(s)) })
	}
}
