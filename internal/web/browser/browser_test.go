package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"go.uber.org/goleak"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hostile is a browser that a page has taken over. It answers calls by replies, and all others with
// an empty result.
type hostile struct {
	list    string
	replies map[string]string // method → result
	events  []string          // sent before the response to Page.navigate
	silent  bool
}

func (h *hostile) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/json/list" {
		fmt.Fprint(w, h.list)
		return
	}
	ws, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer ws.CloseNow()
	ws.SetReadLimit(1 << 20)
	for {
		var m message
		_, b, err := ws.Read(r.Context())
		if err != nil || json.Unmarshal(b, &m) != nil {
			return
		}
		if h.silent {
			continue
		}
		if m.Method == "Page.navigate" {
			for _, e := range h.events {
				if ws.Write(r.Context(), websocket.MessageText, []byte(e)) != nil {
					return
				}
			}
		}
		result := h.replies[m.Method]
		if result == "" {
			result = "{}"
		}
		if ws.Write(r.Context(), websocket.MessageText,
			fmt.Appendf(nil, `{"id":%d,"result":%s}`, m.ID, result)) != nil {
			return
		}
	}
}

// filler makes a message long.
var filler = strings.Repeat("x", 16<<20)

const onePage = `[{"type":"browser_ui","id":"AAAAAAAAAAAA"},{"type":"page","id":"BBBBBBBBBBBB"}]`

// good returns a browser with an ordinary page, modified by change.
func good(change func(*hostile)) *hostile {
	frame := func(event string) string { return `{"method":"Page.` + event + `","params":{"frameId":"F"}}` }
	links := []Link{{URL: "javascript:x"}, {URL: "https://a.example/b", Text: "b\n\n c"}}
	for range 2 * MaxLinks {
		links = append(links, Link{URL: "mailto:x"})
	}
	links = append(links, Link{URL: "https://a.example/late"})
	look, _ := json.Marshal(map[string]any{"url": "https://a.example/", "title": "T\x1b[2J", "length": 4,
		"text": "te\x1b\u009bxt", "links": links})
	evaluated, _ := json.Marshal(map[string]any{"result": map[string]any{"type": "string", "value": string(look)}})
	h := &hostile{list: onePage, replies: map[string]string{
		"Page.getFrameTree":        `{"frameTree":{"frame":{"id":"F"}}}`,
		"Page.navigate":            `{"frameId":"F"}`,
		"Page.createIsolatedWorld": `{"executionContextId":7}`,
		"Runtime.evaluate":         string(evaluated),
		"Page.captureScreenshot":   `{"data":"AAAA"}`,
		"Page.printToPDF":          `{"stream":"1"}`,
		"IO.read":                  `{"base64Encoded":true,"data":"AAAA","eof":false}`,
	}, events: []string{
		frame("frameStartedLoading"),
		`{"method":"Page.frameNavigated","params":{"frame":{"id":"F","url":"https://a.example/"}}}`,
		frame("frameStoppedLoading"),
	}}
	change(h)
	return h
}

// visitTo opens a page in the browser h.
func visitTo(t *testing.T, h *hostile, change func(*Request)) (Result, error) {
	t.Helper()
	s := httptest.NewServer(h)
	defer s.Close()
	r := Request{URL: "https://a.example/", Time: 10 * time.Minute, Width: DefaultWidth, Height: DefaultHeight,
		MaxText: 100}
	change(&r)
	return Open(t.Context(), func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", s.Listener.Addr().String())
	}, r)
}

func TestResultIsCleaned(t *testing.T) {
	got, err := visitTo(t, good(func(*hostile) {}), func(*Request) {})
	if err != nil || got.Title != "T [2J" || got.Text != "text" || len(got.Links) != 1 ||
		got.Links[0] != (Link{URL: "https://a.example/b", Text: "b c"}) || !got.Loaded {
		t.Errorf("Open = %+v, %v; want it loaded and without control characters and unsafe links", got, err)
	}
}

// A host can forge the header of the gateway over TLS.
func TestRefusalHeaderOverTLSIsIgnored(t *testing.T) {
	got, err := visitTo(t, good(func(h *hostile) {
		h.events = append(h.events,
			`{"method":"Network.responseReceived","params":{"type":"Document","frameId":"F",`+
				`"response":{"url":"https://a.example/","status":403,"headers":{"orchestrator-refusal":"denied"}}}}`)
	}), func(*Request) {})
	if err != nil || got.Status != 403 {
		t.Errorf("Open = %+v, %v; want status 403", got, err)
	}
}

// evaluatesTo makes the browser answer every script with value.
func evaluatesTo(value any) func(*hostile) {
	return func(h *hostile) {
		b, _ := json.Marshal(map[string]any{"result": map[string]any{"type": "string", "value": value}})
		h.replies["Runtime.evaluate"] = string(b)
	}
}

// hostileBrowsers are browsers that break the protocol or fail, and the fault that Open reports.
var hostileBrowsers = []struct {
	name   string
	browse func(*hostile)
	ask    func(*Request)
	kind   string
}{
	{"no list", func(h *hostile) { h.list = "<html>" }, nil, FaultBrowser},
	{"an endless list", func(h *hostile) { h.list = "[" + strings.Repeat(`{"type":"x"},`, 10_000) + "{}]" }, nil,
		FaultBrowser},
	{"no page", func(h *hostile) { h.list = `[{"type":"page","id":"../../x"}]` }, nil, FaultBrowser},
	{"silence", func(h *hostile) { h.silent = true }, func(r *Request) { r.Time = 300 * time.Millisecond },
		web.FaultTimeout},
	{"no frame", func(h *hostile) { h.replies["Page.getFrameTree"] = `{}` }, nil, FaultBrowser},
	{"another type", func(h *hostile) { h.replies["Page.getFrameTree"] = `[1]` }, nil, FaultCrashed},
	{"a message that is too long",
		func(h *hostile) { h.replies["Page.enable"] = `"` + strings.Repeat("x", maxMessage) + `"` }, nil,
		FaultCrashed},
	{"an answer of many parts", func(h *hostile) {
		h.replies["Page.getFrameTree"] = `{"frameTree":{"frame":{"id":"F"},"childFrames":[` +
			strings.Repeat(`{},`, maxPlain/3) + `{}]}}`
	}, nil, FaultCrashed},
	{"endless messages", func(h *hostile) {
		h.events = nil
		for range maxTotal/(16<<20) + 1 {
			h.events = append(h.events, `{"method":"x","params":"`+filler+`"}`)
		}
	}, nil, FaultCrashed},
	{"invalid JSON", func(h *hostile) { h.replies["Page.enable"] = `{{{` }, nil, FaultCrashed},
	{"an invalid look", evaluatesTo("{"), nil, FaultBrowser},
	{"a value of another type", evaluatesTo(7), nil, FaultCrashed},
	{"links of another type", evaluatesTo(`{"links":{}}`), nil, FaultBrowser},
	{"an invalid picture", func(*hostile) {}, func(r *Request) { r.Picture = Viewport }, FaultBrowser},
	{"an endless PDF", func(h *hostile) {
		h.replies["IO.read"] = `{"base64Encoded":true,"data":"` + strings.Repeat("AAAA", 1<<18) + `","eof":false}`
	}, func(r *Request) { r.PDF = true }, FaultSize},
	{"the page crashed",
		func(h *hostile) { h.events = []string{`{"method":"Inspector.targetCrashed","params":{}}`} }, nil,
		FaultCrashed},
	{"refused",
		func(h *hostile) { h.replies["Page.navigate"] = `{"errorText":"net::ERR_TUNNEL_CONNECTION_FAILED"}` },
		nil, web.FaultDenied},
	{"an untrusted certificate",
		func(h *hostile) { h.replies["Page.navigate"] = `{"errorText":"net::ERR_CERT_AUTHORITY_INVALID"}` },
		nil, web.FaultTLS},
	{"a download", func(h *hostile) { h.replies["Page.navigate"] = `{"isDownload":true}` }, nil, web.FaultContent},
	{"an error page", func(h *hostile) {
		h.events[1] = `{"method":"Page.frameNavigated","params":{"frame":{"id":"F","url":"chrome-error://x",` +
			`"unreachableUrl":"https://b.example/"}}}`
	}, nil, web.FaultConnect},
	{"a refusal of the gateway", func(h *hostile) {
		h.events = append(h.events,
			`{"method":"Network.responseReceived","params":{"type":"Document","frameId":"F",`+
				`"response":{"url":"http://a.example/","status":403,"headers":{"orchestrator-refusal":"denied"}}}}`)
	}, nil, web.FaultDenied},
	{"a password",
		func(h *hostile) { h.replies["Page.navigate"] = `{"errorText":"net::ERR_INVALID_AUTH_CREDENTIALS"}` },
		nil, web.FaultContent},
}

func TestHostileBrowser(t *testing.T) {
	for _, c := range hostileBrowsers {
		t.Run(c.name, func(t *testing.T) {
			if c.ask == nil {
				c.ask = func(*Request) {}
			}
			_, err := visitTo(t, good(c.browse), c.ask)
			if f, ok := errors.AsType[*Fault](err); !ok || f.Kind != c.kind {
				t.Errorf("Open = %v, want a fault %q", err, c.kind)
			}
		})
	}
}

// The data kept from events is bounded.
func TestEventsAreBounded(t *testing.T) {
	w := newWatch()
	w.follow("F")
	for i := range 5000 {
		w.handle("Runtime.consoleAPICalled",
			json.RawMessage(`{"type":"error","args":[{"value":"`+strings.Repeat("x", 2000)+`"}]}`))
		w.handle("Network.requestWillBeSent",
			json.RawMessage(fmt.Sprintf(`{"requestId":"%d","request":{"url":"https://a.example/%d"}}`, i, i)))
		w.handle("Network.loadingFailed",
			json.RawMessage(fmt.Sprintf(`{"requestId":"%d","errorText":"net::ERR_X"}`, i)))
		w.handle("Page.javascriptDialogOpening", json.RawMessage(`{"type":"alert"}`))
		w.handle("Inspector.targetCrashed", nil)
		w.handle("Page.frameNavigated", json.RawMessage(`7`))
	}
	if len(w.errors) != maxNotes || len(w.errors[0]) != noteLength || len(w.failed) != maxNotes || len(w.urls) > 1000 ||
		w.opened != 5000 || len(w.dialogs) != pending {
		t.Errorf("%d errors, %d failures, %d requests, %d dialogs; want bounded numbers", len(w.errors), len(w.failed),
			len(w.urls), w.opened)
	}
}

// Long events use little memory and time, and a dialog with a long text is still answered.
func TestLongEvents(t *testing.T) {
	w := newWatch()
	w.follow("F")
	long := strings.Repeat("x", maxPlain)
	w.handle("Network.requestWillBeSent", json.RawMessage(`{"requestId":"`+long[:maxID+1]+`","request":{"url":"x"}}`))
	w.handle("Page.frameNavigated", json.RawMessage(`{"frame":{"id":"F","url":"`+long[:maxPlain-100]+`"}}`))
	w.handle("Page.javascriptDialogOpening", json.RawMessage(`{"type":"alert","message":"`+long+`"}`))
	for _, e := range [][2]string{{"Runtime.consoleAPICalled", `{"type":"error"`},
		{"Network.responseReceived", `{"requestId":"1"`}, {"Page.frameNavigated", `{"frame":{"id":"F"}`}} {
		w.handle(e[0], json.RawMessage(e[1]+`,"x":"`+long+`"}`))
	}
	began := time.Now()
	w.handle("Runtime.consoleAPICalled",
		json.RawMessage(`{"type":"error","args":[`+strings.Repeat(`{"value":"words"},`, 50_000)+`{}]}`))
	if took := time.Since(began); took > 30*time.Second || len(w.errors) != 1 {
		t.Errorf("event with many parts took %s and gave %d errors, want 1", took, len(w.errors))
	}
	if len(w.urls) != 0 || len(w.url) != maxURL || len(w.dialogs) != 1 {
		t.Errorf("%d requests, URL of %d bytes, %d dialogs; want 0, maxURL and 1", len(w.urls), len(w.url),
			len(w.dialogs))
	}
}

func FuzzEvents(f *testing.F) {
	f.Add("Page.frameNavigated", `{"frame":{"id":"F","url":"x"}}`)
	f.Add("Network.responseReceived", `{"type":"Document","frameId":"F","response":{"headers":{"a":"b"}}}`)
	f.Add("Runtime.exceptionThrown", `{"exceptionDetails":{"text":"\u0000"}}`)
	f.Fuzz(func(t *testing.T, method, params string) {
		w := newWatch()
		w.follow("F")
		for range 3 {
			w.handle(method, json.RawMessage(params))
		}
		for _, s := range w.errors {
			if len(s) > 4*noteLength || strings.ContainsAny(s, "\n\r\x00\x1b") {
				t.Errorf("error = %q, want at most %d bytes without control characters", s, 4*noteLength)
			}
		}
	})
}
