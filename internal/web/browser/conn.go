package browser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"slices"
	"sync"

	"github.com/chromedp/cdproto/cdp"
	cdpio "github.com/chromedp/cdproto/io"
	"github.com/chromedp/cdproto/page"
	"github.com/coder/websocket"
)

const (
	// maxMessage bounds one message, in bytes: the largest screenshot, incompressible, in base64.
	maxMessage = 32 << 20
	// maxPlain bounds an event, and a response without page content, in bytes. Many small JSON
	// values take far more memory than their text.
	maxPlain = 1 << 20
	// maxTotal bounds all messages of one visit, in bytes, and so the time to read them.
	maxTotal = 256 << 20
	// maxList bounds the list of pages, in bytes.
	maxList = 64 << 10
	// host is the host in requests to the browser, which refuses names.
	host = "127.0.0.1"
)

// Dial opens a byte stream to the browser's debugging port.
type Dial func(ctx context.Context) (net.Conn, error)

// conn is a connection to a page of the browser. It is safe for concurrent use.
type conn struct {
	ws    *websocket.Conn
	life  context.Context // context of the visit; an interrupted write ends the connection
	event func(method string, params json.RawMessage)
	ended chan struct{} // closed after err is set, when reading ends
	err   error

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan<- message
}

// message is a protocol message in either direction.
type message struct {
	ID     int64           `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *protocolError  `json:"error,omitempty"`
}

// protocolError is an error response of the browser.
type protocolError struct {
	Code    int64  `json:"code"`
	Message string `json:"message"`
}

// Error implements error. The text is shortened.
func (e *protocolError) Error() string {
	return fmt.Sprintf("browser error: %s", clean(e.Message, 300))
}

// connect finds the page of the browser and connects to it; ctx is that of the visit. event is
// called for one event at a time and must neither block nor make calls.
func connect(ctx context.Context, dial Dial, event func(method string, params json.RawMessage)) (*conn, error) {
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request,
			[]*http.Request) error {
			return errors.New("unexpected redirect from the browser")
		},
	}
	id, err := findPage(ctx, client)
	if err != nil {
		return nil, err
	}
	ws, res, err := websocket.Dial(ctx, "ws://"+host+"/devtools/page/"+id, &websocket.DialOptions{HTTPClient: client})
	if res != nil && res.Body != nil {
		defer res.Body.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("connect to the page: %w", err)
	}
	ws.SetReadLimit(maxMessage)
	return &conn{ws: ws, life: ctx, event: event, ended: make(chan struct{}), waiting: map[int64]chan<- message{}}, nil
}

var pageID = regexp.MustCompile(`^[0-9A-Fa-f-]{8,64}$`)

// findPage returns the id of the page that the browser was started with.
func findPage(ctx context.Context, client *http.Client) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/json/list", nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("list the pages of the browser: %w", err)
	}
	defer res.Body.Close()
	var pages []struct {
		ID   string `json:"id"`
		Type string `json:"type"`
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxList))
	if err == nil {
		err = json.Unmarshal(body, &pages)
	}
	if err != nil {
		return "", fmt.Errorf("list the pages of the browser: %w", err)
	}
	for _, p := range pages {
		if p.Type == "page" && pageID.MatchString(p.ID) {
			return p.ID, nil
		}
	}
	return "", errors.New("the browser has no page")
}

// read handles messages until the connection ends.
func (c *conn) read(ctx context.Context) {
	defer close(c.ended)
	total := 0
	for {
		_, b, err := c.ws.Read(ctx)
		if err != nil {
			c.err = err
			return
		}
		if total += len(b); total > maxTotal {
			c.err = fmt.Errorf("messages over %d bytes in total", maxTotal)
			return
		}
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			c.err = fmt.Errorf("invalid message from the browser: %w", err)
			return
		}
		if m.ID == 0 {
			c.event(m.Method, m.Params)
			continue
		}
		c.mu.Lock()
		answer := c.waiting[m.ID]
		delete(c.waiting, m.ID)
		c.mu.Unlock()
		if answer != nil {
			answer <- m // buffered
		}
	}
}

// send makes a call and waits for its response.
func (c *conn) send(ctx context.Context, method string, params any) (json.RawMessage, error) {
	raw, err := json.Marshal(params)
	if err != nil {
		return nil, err
	}
	answer := make(chan message, 1)
	c.mu.Lock()
	c.last++
	id := c.last
	c.waiting[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, id)
		c.mu.Unlock()
	}()
	b, err := json.Marshal(message{ID: id, Method: method, Params: raw})
	if err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := c.ws.Write(c.life, websocket.MessageText, b); err != nil {
		return nil, &lostError{err}
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return nil, m.Error
		}
		return m.Result, nil
	case <-c.ended:
		return nil, &lostError{c.err}
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// lostError reports that the browser ended or sent invalid data.
type lostError struct{ err error }

func (e *lostError) Error() string { return fmt.Sprintf("lost the browser: %v", e.err) }
func (e *lostError) Unwrap() error { return e.err }

// bulky lists the commands whose responses contain page content as one text.
var bulky = []string{evaluate.Method, page.CaptureScreenshot.Method, cdpio.Read.Method}

// call is send for a typed command.
func call[P, R any](ctx context.Context, c *conn, command cdp.Command[P, R], params P) (R, error) {
	var r R
	raw, err := c.send(ctx, command.Method, params)
	if err != nil {
		return r, fmt.Errorf("%s: %w", command.Method, err)
	}
	if len(raw) > maxPlain && !slices.Contains(bulky, command.Method) {
		return r, fmt.Errorf("%s: %w", command.Method, &lostError{fmt.Errorf("response of %d bytes", len(raw))})
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("%s: %w", command.Method, &lostError{err})
	}
	return r, nil
}
