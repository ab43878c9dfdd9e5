package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Bounds of what is kept of events.
const (
	maxNotes   = 50
	noteLength = 500
	maxID      = 100 // bytes of a request's id; Chromium's are short
	// maxDialogs is how many dialogs a page may open before its scripts are
	// stopped.
	maxDialogs = 20
	pending    = 8 // dialogs that wait for an answer; more are answered by the next
)

// watch follows a page by its events. note is called by one goroutine, the
// other methods by any.
type watch struct {
	dialogs chan string   // kinds of dialogs that were opened
	crashed chan struct{} // closed when the page's process has ended

	mu      sync.Mutex
	main    string // the page's frame
	changed chan struct{}
	loading bool
	loads   int // of the main frame that have ended
	since   time.Time
	url     string
	broken  string // address of a main document that could not be had
	reason  string // the browser's word for why
	status  int64
	refusal string // of the gateway, for the main document
	mime    string
	errors  []string
	failed  []Failure
	opened  int // dialogs
	dead    bool
	// requests of documents of the main frame, the last ones.
	document string
	urls     map[string]string // of requests under way
}

func newWatch() *watch {
	return &watch{dialogs: make(chan string, pending), crashed: make(chan struct{}), changed: make(chan struct{}), urls: map[string]string{}}
}

// state is what a page is at a moment.
type state struct {
	loading bool
	loads   int
	since   time.Time // when that began
	changed <-chan struct{}
}

func (w *watch) state() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return state{w.loading, w.loads, w.since, w.changed}
}

// turn is called with mu held, when loading or loads change.
func (w *watch) turn(loading bool) {
	w.loading, w.since = loading, time.Now()
	close(w.changed)
	w.changed = make(chan struct{})
}

// follow names the page's frame, before anything is opened in it.
func (w *watch) follow(frame string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.main = frame
}

type frameEvent struct {
	FrameID string `json:"frameId"`
	Frame   struct {
		ID             string `json:"id"`
		ParentID       string `json:"parentId"`
		URL            string `json:"url"`
		UnreachableURL string `json:"unreachableUrl"`
	} `json:"frame"`
}

type networkEvent struct {
	RequestID     string `json:"requestId"`
	LoaderID      string `json:"loaderId"`
	FrameID       string `json:"frameId"`
	Type          string `json:"type"`
	ErrorText     string `json:"errorText"`
	BlockedReason string `json:"blockedReason"`
	Canceled      bool   `json:"canceled"`
	Request       struct {
		URL string `json:"url"`
	} `json:"request"`
	Response struct {
		URL      string            `json:"url"`
		Status   int64             `json:"status"`
		Headers  map[string]string `json:"headers"`
		MimeType string            `json:"mimeType"`
	} `json:"response"`
}

// note takes an event. One that cannot be decoded is none, nor one that is too
// long, but for dialogs: those want an answer.
func (w *watch) note(method string, params json.RawMessage) {
	domain, name, _ := strings.Cut(method, ".")
	w.mu.Lock()
	defer w.mu.Unlock()
	switch domain {
	case "Page":
		w.page(name, params)
	case "Network":
		w.network(name, params)
	case "Runtime", "Log":
		w.console(name, params)
	case "Inspector":
		if name == "targetCrashed" && !w.dead {
			w.dead = true
			close(w.crashed)
		}
	}
}

func (w *watch) page(name string, params json.RawMessage) {
	if name == "javascriptDialogOpening" {
		var e struct {
			Type string `json:"type"`
		}
		if len(params) <= maxPlain { // of a longer one the kind does not count
			_ = json.Unmarshal(params, &e) // an unknown kind is dismissed
		}
		w.opened++
		select {
		case w.dialogs <- clean(e.Type, 20):
		default:
		}
		return
	}
	if !strings.HasPrefix(name, "frame") || len(params) > maxPlain {
		return
	}
	var e frameEvent
	if json.Unmarshal(params, &e) != nil {
		return
	}
	switch {
	case name == "frameNavigated" && e.Frame.ID == w.main && e.Frame.ParentID == "":
		w.url, w.broken = cut(e.Frame.URL, maxURL), cut(e.Frame.UnreachableURL, maxURL)
		if w.broken == "" {
			w.reason = ""
		}
	case e.FrameID != w.main:
	case name == "frameStartedLoading", name == "frameRequestedNavigation", name == "frameScheduledNavigation":
		if !w.loading {
			w.turn(true)
		}
	case name == "frameStoppedLoading", name == "frameClearedScheduledNavigation":
		if name == "frameStoppedLoading" {
			w.loads++
		}
		w.turn(false)
	}
}

func (w *watch) network(name string, params json.RawMessage) {
	switch name {
	case "requestWillBeSent", "responseReceived", "loadingFailed", "loadingFinished":
	default:
		return
	}
	var e networkEvent
	if len(params) > maxPlain || json.Unmarshal(params, &e) != nil || len(e.RequestID) > maxID {
		return
	}
	main := e.Type == "Document" && e.FrameID == w.main
	switch name {
	case "requestWillBeSent":
		if main {
			w.document = e.RequestID
		}
		if len(w.urls) < 1000 {
			w.urls[e.RequestID] = clean(e.Request.URL, noteLength)
		}
	case "responseReceived":
		if main {
			w.status, w.mime = e.Response.Status, clean(e.Response.MimeType, 100)
			w.refusal = refusal(e.Response.URL, e.Response.Headers)
		} else if r := refusal(e.Response.URL, e.Response.Headers); r != "" {
			w.fail(Failure{URL: clean(e.Response.URL, noteLength), Error: r})
		}
	case "loadingFailed":
		url := w.urls[e.RequestID]
		delete(w.urls, e.RequestID)
		switch {
		case e.RequestID == w.document:
			w.reason = clean(e.ErrorText, 100)
		case !e.Canceled:
			text := clean(e.ErrorText, 100)
			if e.BlockedReason != "" {
				text += " (" + clean(e.BlockedReason, 100) + ")"
			}
			w.fail(Failure{URL: url, Error: text})
		}
	case "loadingFinished":
		delete(w.urls, e.RequestID)
	}
}

// refusal is what the gateway answers itself. In TLS it is the host that speaks,
// and could say so too.
func refusal(url string, headers map[string]string) string {
	if !strings.HasPrefix(url, "http://") {
		return ""
	}
	for name, value := range headers {
		if strings.EqualFold(name, web.RefusalHeader) {
			return "refused by the gateway: " + clean(value, 300)
		}
	}
	return ""
}

func (w *watch) fail(f Failure) {
	if len(w.failed) < maxNotes {
		w.failed = append(w.failed, f)
	}
}

type consoleEvent struct {
	Type string `json:"type"`
	Args []struct {
		Value       json.RawMessage `json:"value"`
		Description string          `json:"description"`
	} `json:"args"`
	ExceptionDetails struct {
		Text      string `json:"text"`
		URL       string `json:"url"`
		Line      int64  `json:"lineNumber"`
		Exception struct {
			Description string `json:"description"`
		} `json:"exception"`
	} `json:"exceptionDetails"`
	Entry struct {
		Level string `json:"level"`
		Text  string `json:"text"`
		URL   string `json:"url"`
	} `json:"entry"`
}

// console keeps errors.
func (w *watch) console(name string, params json.RawMessage) {
	if len(w.errors) >= maxNotes || len(params) > maxPlain || name != "consoleAPICalled" && name != "exceptionThrown" && name != "entryAdded" {
		return
	}
	var e consoleEvent
	if json.Unmarshal(params, &e) != nil {
		return
	}
	var text string
	switch {
	case name == "consoleAPICalled" && (e.Type == "error" || e.Type == "assert"):
		for _, a := range e.Args[:min(len(e.Args), noteLength)] {
			var s string
			if json.Unmarshal(a.Value, &s) != nil {
				s = a.Description
			}
			text += " " + clean(s, noteLength)
		}
	case name == "exceptionThrown":
		x := e.ExceptionDetails
		text = x.Text + " " + x.Exception.Description
		if x.URL != "" {
			text += fmt.Sprintf(" (%s:%d)", x.URL, x.Line+1)
		}
	case name == "entryAdded" && e.Entry.Level == "error":
		text = e.Entry.Text + " " + e.Entry.URL
	}
	if text = clean(text, noteLength); text != "" {
		w.errors = append(w.errors, text)
	}
}
