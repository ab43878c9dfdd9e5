package netpolicy

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// answer forwards the server's answer to the client as it arrives. It follows no redirects, and
// neither buffers nor decompresses the body.
func (x *exchange) answer(resp *http.Response) error {
	if resp.StatusCode < 200 {
		return unreached("request to "+x.f.decision.Host, fmt.Errorf("the server answered with status %d", resp.StatusCode))
	}
	h := x.w.Header()
	for field, values := range endToEnd(resp.Header) {
		h[field] = values
	}
	x.mask.header(h)
	for _, field := range []string{"Content-Type", "Date"} {
		if _, ok := h[field]; !ok {
			h[field] = nil // prevents the HTTP server from adding its own
		}
	}
	for field := range endToEnd(resp.Trailer) {
		h.Add("Trailer", x.mask.name(field))
	}
	if !x.body.eof.Load() {
		h.Set("Connection", "close") // the rest of the request's body must not be read as the next request
	}
	announced := len(resp.Trailer)
	x.answered = true
	x.w.WriteHeader(resp.StatusCode)
	if err := x.copyBody(resp.Body); err != nil {
		return err
	}
	if len(resp.Trailer) == 0 {
		return nil
	}
	prefix := ""
	if announced != len(resp.Trailer) {
		prefix = http.TrailerPrefix
	}
	trailer := endToEnd(resp.Trailer)
	x.mask.header(trailer)
	_ = http.NewResponseController(x.w).Flush() // trailers require the chunked encoding
	for field, values := range trailer {
		h[prefix+field] = values
	}
	return nil
}

// endToEnd returns a copy of an answer's header or trailer without the fields about the connection
// and without the gateway's own field.
func endToEnd(h http.Header) http.Header {
	out := forwardable(h)
	out.Del(RefusalHeader)
	return out
}

// copyBody forwards the answer's body and flushes after each read.
func (x *exchange) copyBody(from io.Reader) error {
	to := &toClient{x: x, flush: http.NewResponseController(x.w).Flush}
	_, err := x.f.s.buffers.Copy(to, from)
	switch {
	case to.gone:
		return errGone
	case err != nil:
		return x.mask.unreached("the answer broke off", err)
	}
	return to.send(x.mask.body(nil, true))
}

// toClient writes an answer's body to the client, through the mask.
type toClient struct {
	x     *exchange
	flush func() error
	gone  bool // the client disconnected
}

// Write implements io.Writer. It may change p.
func (a *toClient) Write(p []byte) (int, error) {
	a.x.f.count(true, len(p))
	return len(p), a.send(a.x.mask.body(p, false))
}

func (a *toClient) send(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, err := a.x.w.Write(p)
	if err == nil {
		err = a.flush()
	}
	if err != nil {
		a.gone = true
		return errGone
	}
	return nil
}

// upgrade takes the connection from the HTTP server after the upstream server agreed to a
// WebSocket. The relay starts when the HTTP server has released the connection.
func (x *exchange) upgrade(resp *http.Response) error {
	outside, ok := resp.Body.(io.ReadWriteCloser)
	if !ok || !x.socket || !isWebSocket(resp.Header) {
		resp.Body.Close()
		return unreached("request to "+x.f.decision.Host,
			errors.New("the server switched to a protocol that the client did not request"))
	}
	header := endToEnd(resp.Header)
	x.mask.header(header)
	header.Set("Connection", "Upgrade")
	header.Set("Upgrade", "websocket")
	head := x.c.takeOver(x.w)
	x.upgraded = true
	x.c.afterServer <- func() { x.f.end(x.relayUpgrade(header, outside, head)) }
	return nil
}

// relayUpgrade sends the 101 answer to the client and relays bytes in both directions until both
// end.
func (x *exchange) relayUpgrade(header http.Header, outside io.ReadWriteCloser, head []byte) error {
	defer outside.Close()
	nc := x.c.Conn
	nc.SetDeadline(time.Now().Add(x.f.s.g.o.Limits.HeaderTime))
	if _, err := io.WriteString(nc, "HTTP/1.1 101 Switching Protocols\r\n"); err != nil {
		return errGone
	}
	if err := header.Write(nc); err != nil {
		return errGone
	}
	if _, err := io.WriteString(nc, "\r\n"); err != nil {
		return errGone
	}
	nc.SetDeadline(time.Time{})
	return x.f.relay(nc, outside, head, x.f.count)
}
