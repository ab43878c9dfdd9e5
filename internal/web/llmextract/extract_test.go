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

// Each kind of endpoint gets requests in its documented form. The page is data between random
// marks.
func TestExtractRequest(t *testing.T) {
	var system, user string
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			Model     string    `json:"model"`
			MaxTokens int       `json:"max_tokens"`
			Messages  []message `json:"messages"`
		}
		b, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(b, &in); err != nil || r.Header.Get("Authorization") != "Bearer "+key ||
			in.Model != "small" || in.MaxTokens != 77 || len(in.Messages) != 2 || strings.Contains(string(b), key) {
			t.Errorf("request = %v, header %v, body %s; want the key only in Authorization, model small, 77 tokens, 2 messages",
				err, r.Header, b)
		}
		system, user = in.Messages[0].Content, in.Messages[1].Content
		fmt.Fprint(w,
			`{"choices": [{"index": 0, "message": {"role": "assistant", "content": " found it \n"}, `+
				`"finish_reason": "stop"}]}`)
	})
	mux.HandleFunc("POST /v1/messages", func(w http.ResponseWriter, r *http.Request) {
		var in struct {
			System   string    `json:"system"`
			Messages []message `json:"messages"`
		}
		b, _ := io.ReadAll(r.Body)
		if err := json.Unmarshal(b, &in); err != nil || r.Header.Get("X-Api-Key") != key ||
			r.Header.Get("Anthropic-Version") == "" || len(in.Messages) != 1 || in.Messages[0].Role != "user" {
			t.Errorf("request = %v, header %v, body %s; want the key, a version and one message of the user", err, r.Header, b)
		}
		system, user = in.System, in.Messages[0].Content
		fmt.Fprint(w,
			`{"type": "message", "content": [{"type": "thinking", "text": "no"}, {"type": "text", "text": "found `+
				`"}, {"type": "text", "text": "it"}]}`)
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
			t.Errorf("%s: Extract = %q, %v; want \"found it\"", kind, got, err)
		}
		_, rest, _ := strings.Cut(user, "the price\n\n")
		mark, page, _ := strings.Cut(rest, "\n")
		if !strings.HasPrefix(page, "Page: https://a.example/\n\nä") || len(mark) < 20 ||
			!strings.Contains(system, mark) || !strings.HasSuffix(page, "ä\n"+mark+"\n") || len(page) > MaxText+100 {
			t.Errorf("%s: prompt = %.200q … of %d bytes, want the page between marks of the system prompt", kind, user, len(page))
		}
	}
}

// fakeModel is a model server that sends the response of its fields. It never responds to status 0.
type fakeModel struct {
	status       int
	header, body string // header is the value of Retry-After
}

// start returns a client of the server, which runs until the end of the test.
func (f *fakeModel) start(t *testing.T) *Model {
	t.Helper()
	stuck := make(chan struct{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f.status == 0 {
			select {
			case <-stuck:
			case <-r.Context().Done():
			}
			return
		}
		if f.status == http.StatusFound {
			w.Header().Set("Location", "/elsewhere")
		}
		w.Header().Set("Retry-After", f.header)
		w.WriteHeader(f.status)
		fmt.Fprint(w, f.body)
	}))
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(stuck) })
	m, err := New(Options{Kind: OpenAI, URL: s.URL, Model: "m", Key: key, Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestExtractErrors(t *testing.T) {
	var server fakeModel
	m := server.start(t)
	for _, c := range []struct {
		status       int
		header, body string
		says         string
	}{
		{401, "", key, "rejects the key (web.extract.key_file)"},
		{404, "", "", "web.extract.model"},
		{429, "12", "", "try again in 12s"},
		{429, "soon; x=1", "", "429 Too Many Requests"},
		{500, "", key, "status 500"},
		{302, "", "", "status 302"},
		{200, "", "<html>", "response in openai format"},
		{200, "", `{"choices": []}`, "answer is empty"},
		{200, "", `{"content": [{"type": "text", "text": "the other form"}]}`, "answer is empty"},
		{200, "", strings.Repeat("x", maxAnswer+1), "longer than"},
	} {
		server = fakeModel{c.status, c.header, c.body}
		if _, err := m.Extract(t.Context(), "p", "u", "t"); err == nil || !strings.Contains(err.Error(), c.says) ||
			strings.Contains(err.Error(), key) {
			t.Errorf("Extract with status %d and body %.40q = %v, want %q", c.status, c.body, err, c.says)
		}
	}
	server = fakeModel{status: 200, body: `{"choices": [{"message": {"content": "asked with Bearer ` + key + `"}}]}`}
	if got, err := m.Extract(t.Context(), "p", "u", "t"); err != nil || got != "asked with Bearer [redacted]" {
		t.Errorf("Extract with an echoed key = %q, %v; want it redacted", got, err)
	}
}

func TestExtractWithoutResponse(t *testing.T) {
	var server fakeModel
	m := server.start(t)
	m.o.Timeout = 50 * time.Millisecond
	if _, err := m.Extract(t.Context(), "p", "u", "t"); err == nil || !strings.Contains(err.Error(), "within 50ms") {
		t.Errorf("Extract without a response = %v, want a timeout", err)
	}
	m.o.Timeout = time.Minute
	short, done := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer done()
	if _, err := m.Extract(short, "p", "u", "t"); err == nil ||
		!strings.Contains(err.Error(), "in the remaining time of the call") {
		t.Errorf("Extract after the time of the call = %v, want an error about the remaining time", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Extract(ctx, "p", "u", "t"); err == nil {
		t.Error("Extract with a cancelled context succeeded, want an error")
	}
	m.o.URL = "http://127.0.0.1:1"
	if _, err := m.Extract(t.Context(), "p", "u", "t"); err == nil || strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("Extract without a server = %v, want an error without the address", err)
	}
}

func TestNewErrors(t *testing.T) {
	for _, c := range []struct {
		o    Options
		says string
	}{
		{Options{Kind: "x", Model: "m"}, `kind is "x"`},
		{Options{Kind: OpenAI}, "model is missing"},
		{Options{Kind: OpenAI, Model: "m", URL: "file:///x"}, "url must be an http"},
		{Options{Kind: OpenAI, Model: "m", URL: "https://k@x.example"}, "url has a user"},
		{Options{Kind: Anthropic, Model: "m", Key: "a\nb"}, "key_file has more"},
		{Options{Kind: Anthropic, Model: "m", MaxTokens: -1}, "max_tokens is -1"},
	} {
		if _, err := New(c.o); err == nil || !strings.HasPrefix(err.Error(), c.says) {
			t.Errorf("New(%+v) = %v, want %s...", c.o, err, c.says)
		}
	}
}
