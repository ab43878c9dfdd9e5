package llmextract

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

const key = "key-that-nobody-may-see"

// Each kind of endpoint gets what it documents; the page is data between marks
// that it does not know.
func TestAModelIsAskedAsItDocuments(t *testing.T) {
	var system, user string
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Model     string    `json:"model"`
			MaxTokens int       `json:"max_tokens"`
			Messages  []message `json:"messages"`
		}
		b, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(b, &in); err != nil || r.Header.Get("Authorization") != "Bearer "+key || in.Model != "small" || in.MaxTokens != 77 || len(in.Messages) != 2 || strings.Contains(string(b), key) {
			t.Errorf("%v %v %s", err, r.Header, b)
		}
		system, user = in.Messages[0].Content, in.Messages[1].Content
		fmt.Fprint(w, `{"choices": [{"index": 0, "message": {"role": "assistant", "content": " found it \n"}, "finish_reason": "stop"}]}`)
	})
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			System   string    `json:"system"`
			Messages []message `json:"messages"`
		}
		b, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(b, &in); err != nil || r.Header.Get("X-Api-Key") != key || r.Header.Get("Anthropic-Version") == "" || len(in.Messages) != 1 || in.Messages[0].Role != "user" {
			t.Errorf("%v %v %s", err, r.Header, b)
		}
		system, user = in.System, in.Messages[0].Content
		fmt.Fprint(w, `{"type": "message", "content": [{"type": "thinking", "text": "no"}, {"type": "text", "text": "found "}, {"type": "text", "text": "it"}]}`)
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	for _, kind := range []string{OpenAI, Anthropic} {
		m, err := New(Options{Kind: kind, URL: s.URL + "/v1/", Model: "small", Key: key, MaxTokens: 77})
		if err != nil {
			t.Fatal(err)
		}
		got, err := m.Extract(t.Context(), "the price", "https://a.example/", strings.Repeat("ä", MaxText))
		if err != nil || got != "found it" {
			t.Errorf("%s: %q %v", kind, got, err)
		}
		_, rest, _ := strings.Cut(user, "the price\n\n")
		mark, page, _ := strings.Cut(rest, "\n")
		if !strings.HasPrefix(page, "Page: https://a.example/\n\nä") || len(mark) < 20 || !strings.Contains(system, mark) || !strings.HasSuffix(page, "ä\n"+mark+"\n") || len(page) > MaxText+100 {
			t.Errorf("%s: %.200q … %d bytes", kind, user, len(page))
		}
	}
}

func TestAModelThatFailsIsSaidAndShowsNoKey(t *testing.T) {
	stuck := make(chan struct{})
	status, header, body := 0, "", ""
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status == 0 {
			select {
			case <-stuck:
			case <-r.Context().Done():
			}
			return
		}
		if status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.Header().Set("Retry-After", header)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	defer s.Close()
	defer close(stuck)
	m, err := New(Options{Kind: OpenAI, URL: s.URL, Model: "m", Key: key, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status       int
		header, body string
		says         string
	}{
		{401, "", key, "does not take the key (web.extract.key_file)"},
		{404, "", "", "web.extract.model"},
		{429, "12", "", "try again in 12s"},
		{429, "soon; x=1", "", "429 Too Many Requests"},
		{500, "", key, "answered 500"},
		{302, "", "", "answered 302"},
		{200, "", "<html>", "something else than the openai form"},
		{200, "", `{"choices": []}`, "answered nothing"},
		{200, "", `{"content": [{"type": "text", "text": "the other form"}]}`, "answered nothing"},
		{200, "", strings.Repeat("x", maxAnswer+1), "more than"},
	} {
		status, header, body = c.status, c.header, c.body
		if _, err := m.Extract(t.Context(), "p", "u", "t"); err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), key) {
			t.Errorf("%d %.40q: %v; want %q", c.status, c.body, err, c.says)
		}
	}
	status, body = 200, `{"choices": [{"message": {"content": "asked with Bearer `+key+`"}}]}`
	if got, err := m.Extract(t.Context(), "p", "u", "t"); err != nil || got != "asked with Bearer [redacted]" {
		t.Errorf("one that gives the key back: %q %v", got, err)
	}
	status, m.o.Timeout = 0, 50*time.Millisecond
	if _, err := m.Extract(t.Context(), "p", "u", "t"); err == nil || !strings.Contains(err.Error(), "within 50ms") {
		t.Errorf("one that does not answer: %v", err)
	}
	m.o.Timeout = time.Minute
	short, done := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer done()
	if _, err := m.Extract(short, "p", "u", "t"); err == nil || !strings.Contains(err.Error(), "in the time that the call had left") {
		t.Errorf("a call whose time is over: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Extract(ctx, "p", "u", "t"); err == nil {
		t.Error("a call that was given up got an answer")
	}
	m.o.URL = "http://127.0.0.1:1"
	if _, err := m.Extract(t.Context(), "p", "u", "t"); err == nil || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestOptionsThatCannotBeUsedNameTheirField(t *testing.T) {
	for _, c := range []struct {
		o    Options
		says string
	}{
		{Options{Kind: "x", Model: "m"}, `kind is "x"`},
		{Options{Kind: OpenAI}, "model is missing"},
		{Options{Kind: OpenAI, Model: "m", URL: "file:///x"}, "url is no http"},
		{Options{Kind: OpenAI, Model: "m", URL: "https://k@x.example"}, "url has a user"},
		{Options{Kind: Anthropic, Model: "m", Key: "a\nb"}, "key_file holds more"},
		{Options{Kind: Anthropic, Model: "m", MaxTokens: -1}, "max_tokens is -1"},
	} {
		if _, err := New(c.o); err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("%+v: %v", c.o, err)
		}
	}
}
