package browser

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Bounds of the data kept from events.
const (
	maxNotes   = 50
	noteLength = 500
	maxID      = 100 // bytes of a request id; those of Chromium are short
	// maxDialogs is how many dialogs a page may open before its scripts are stopped.
	maxDialogs = 20
	pending    = 8 // queued dialogs; answering a queued one also answers later ones
)

// watch collects the events of a page. handle must be called by one goroutine at a time; the other
// methods are safe for concurrent use.
type watch struct {
	dialogs chan string   // kinds of open dialogs
	crashed chan struct{} // closed when the process of the page ended

	mu      sync.Mutex
	main    string // id of the main frame
	changed chan struct{}
	loading bool
	loads   int // finished loads of the main frame
	since   time.Time
	url     string
	broken  string // URL of a main document that failed to load
	reason  string // error text of the browser
	status  int64
	refusal string // by the gateway, of the main document
	mime    string
	errors  []string
	failed  []Failure
	opened  int // number of dialogs
	dead    bool
	// document is the id of the last request for a document of the main frame.
	document string
	urls     map[string]string // by id of pending requests
}

func newWatch() *watch {
	return &watch{dialogs: make(chan string, pending), crashed: make(chan struct{}), changed: make(chan struct{}),
		urls: map[string]string{}}
}

// state is a snapshot of the loading state.
type state struct {
	loading bool
	loads   int
	since   time.Time // time of the last change
	changed <-chan struct{}
}

func (w *watch) state() state {
	w.mu.Lock()
	defer w.mu.Unlock()
	return state{w.loading, w.loads, w.since, w.changed}
}

// setLoading records a change of loading or loads. The caller holds mu.
func (w *watch) setLoading(loading bool) {
	w.loading, w.since = loading, time.Now()
	close(w.changed)
	w.changed = make(chan struct{})
}

// follow sets the main frame, before a page is opened in it.
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

// handle processes an event. It ignores events that are invalid or too long, except dialogs, which
// need an answer.
func (w *watch) handle(method string, params json.RawMessage) {
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
		if len(params) <= maxPlain { // the kind of a longer one is ignored
			_ = json.Unmarshal(params, &e) // dialogs of an unknown kind are dismissed
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
		w.url, _ = clip.Runes(e.Frame.URL, maxURL)
		w.broken, _ = clip.Runes(e.Frame.UnreachableURL, maxURL)
		if w.broken == "" {
			w.reason = ""
		}
	case e.FrameID != w.main:
	case name == "frameStartedLoading", name == "frameRequestedNavigation", name == "frameScheduledNavigation":
		if !w.loading {
			w.setLoading(true)
		}
	case name == "frameStoppedLoading", name == "frameClearedScheduledNavigation":
		if name == "frameStoppedLoading" {
			w.loads++
		}
		w.setLoading(false)
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

// refusal returns the reason if a response is by the gateway. Over TLS, the host could forge the
// header, so only plain HTTP counts.
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

// console records errors.
func (w *watch) console(name string, params json.RawMessage) {
	if len(w.errors) >= maxNotes || len(params) > maxPlain || name != "consoleAPICalled" && name != "exceptionThrown" &&
		name != "entryAdded" {
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
