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
	// maxMessage bounds one message of the browser: a picture of the most pixels
	// that cannot be compressed, in base64.
	maxMessage = 32 << 20
	// maxPlain bounds an event, and an answer that brings nothing of the page: of
	// what can be many small parts, each takes far more memory than text.
	maxPlain = 1 << 20
	// maxTotal bounds all messages of one visit, and so the time that reading them
	// takes.
	maxTotal = 256 << 20
	// maxList bounds the list of its pages.
	maxList = 64 << 10
	// host is what the browser is called by: it refuses names.
	host = "127.0.0.1"
)

// Dial opens a byte stream to the browser's debugging port.
type Dial func(ctx context.Context) (net.Conn, error)

// conn is a connection to the one page of a browser. Calls may be made
// concurrently.
type conn struct {
	ws    *websocket.Conn
	life  context.Context // of the visit: a write that is cut short ends the connection
	event func(method string, params json.RawMessage)
	ended chan struct{} // closed when nothing is read any more, after err is set
	err   error

	mu      sync.Mutex
	last    int64
	waiting map[int64]chan<- message
}

// message is one in either direction.
type message struct {
	ID     int64           `json:"id,omitempty"`
	Method string          `json:"method,omitempty"`
	Params json.RawMessage `json:"params,omitempty"`
	Result json.RawMessage `json:"result,omitempty"`
	Error  *protocolError  `json:"error,omitempty"`
}

// protocolError is what the browser says of a call that it refuses.
type protocolError struct {
	Code    int64  `json:"code"`
	Message string `json:"message"`
}

// Error is the browser's text, shortened.
func (e *protocolError) Error() string {
	return fmt.Sprintf("the browser says: %s", clean(e.Message, 300))
}

// connect finds the browser's page and connects to it; ctx is the visit's. event is
// called for each event, one at a time, and must not block or call.
func connect(ctx context.Context, dial Dial, event func(method string, params json.RawMessage)) (*conn, error) {
	client := &http.Client{
		Transport: &http.Transport{
			DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
			DisableKeepAlives: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errors.New("the browser redirects") },
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
		return nil, fmt.Errorf("connect to the browser's page: %w", err)
	}
	ws.SetReadLimit(maxMessage)
	return &conn{ws: ws, life: ctx, event: event, ended: make(chan struct{}), waiting: map[int64]chan<- message{}}, nil
}

var pageID = regexp.MustCompile(`^[0-9A-Fa-f-]{8,64}$`)

// findPage asks for the page that the browser was started with.
func findPage(ctx context.Context, client *http.Client) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+"/json/list", nil)
	if err != nil {
		return "", err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("ask the browser for its pages: %w", err)
	}
	defer res.Body.Close()
	var pages []struct{ ID, Type string }
	body, err := io.ReadAll(io.LimitReader(res.Body, maxList))
	if err == nil {
		err = json.Unmarshal(body, &pages)
	}
	if err != nil {
		return "", fmt.Errorf("the browser's list of pages: %w", err)
	}
	for _, p := range pages {
		if p.Type == "page" && pageID.MatchString(p.ID) {
			return p.ID, nil
		}
	}
	return "", errors.New("the browser has no page")
}

// read takes what the browser sends until the connection ends.
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
			c.err = fmt.Errorf("its messages have more than %d bytes together", maxTotal)
			return
		}
		var m message
		if err := json.Unmarshal(b, &m); err != nil {
			c.err = fmt.Errorf("a message of the browser: %w", err)
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
			answer <- m // there is room for it
		}
	}
}

// send makes a call and waits for its answer.
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

// lostError says that the browser has gone, or says what it never would.
type lostError struct{ err error }

func (e *lostError) Error() string { return fmt.Sprintf("the browser was lost: %v", e.err) }
func (e *lostError) Unwrap() error { return e.err }

// bulky are the commands whose answers bring the page, each as one text.
var bulky = []string{evaluate.Method, page.CaptureScreenshot.Method, cdpio.Read.Method}

// call is send for a command of the protocol.
func call[P, R any](ctx context.Context, c *conn, command cdp.Command[P, R], params P) (R, error) {
	var r R
	raw, err := c.send(ctx, command.Method, params)
	if err != nil {
		return r, fmt.Errorf("%s: %w", command.Method, err)
	}
	if len(raw) > maxPlain && !slices.Contains(bulky, command.Method) {
		return r, fmt.Errorf("%s: %w", command.Method, &lostError{fmt.Errorf("an answer of %d bytes", len(raw))})
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("%s: %w", command.Method, &lostError{err})
	}
	return r, nil
}
