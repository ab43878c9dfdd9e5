package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// handle serves one connection from the sandbox until it ends.
func (s *Session) handle(ctx context.Context, nc net.Conn) {
	over, ok := s.admit()
	defer s.leave()
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	begun := time.Now()
	if !ok {
		s.recordInvalid(begun, over.Error())
		return
	}
	var first [1]byte
	nc.SetReadDeadline(begun.Add(s.g.o.Limits.HeaderTime))
	if _, err := io.ReadFull(nc, first[:]); err != nil {
		s.recordInvalid(begun, "the connection ended before a request")
		return
	}
	c := newClient(ctx, s, nc, first[:])
	c.limitErr = over
	if first[0] == socksVersion {
		s.socks(c)
		return
	}
	c.serve()
}

type clientKey struct{}

// newServer returns the HTTP server for all sessions. It accepts only HTTP/1.1 and refuses
// ambiguous requests.
func newServer(g *Gateway) *http.Server {
	l := g.o.Limits
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	return &http.Server{
		Handler:                      http.HandlerFunc(serveRequest),
		Protocols:                    protocols,
		DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout:            l.HeaderTime,
		IdleTimeout:                  l.IdleTime,
		MaxHeaderBytes:               maxHeader,
		ErrorLog:                     slog.NewLogLogger(g.log.Handler(), slog.LevelDebug),
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, clientKey{}, nc)
		},
		ConnState: func(nc net.Conn, state http.ConnState) {
			c := nc.(*client)
			switch state {
			case http.StateActive:
				c.pendingBytes.Store(true)
			case http.StateIdle:
				c.idle.Store(true)
			case http.StateClosed:
				if c.pendingBytes.Load() {
					c.s.recordInvalid(c.begun,
						fmt.Sprintf("invalid request: not HTTP, more than %d bytes of header, or not complete within %s", maxHeader,
							l.HeaderTime))
				}
				close(c.closed) // the server's last action
			default:
			}
		},
	}
}

func serveRequest(w http.ResponseWriter, r *http.Request) {
	c := r.Context().Value(clientKey{}).(*client)
	c.idle.Store(false)
	c.pendingBytes.Store(false)
	if r.Method == http.MethodConnect {
		c.s.connect(c, w, r)
		return
	}
	c.s.request(c, w, r)
}

// takeOver takes the connection from the HTTP server. It returns the bytes that the server had
// already read.
func (c *client) takeOver(w http.ResponseWriter) (head []byte) {
	_, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	head = make([]byte, rw.Reader.Buffered(), rw.Reader.Buffered()+len(c.head))
	// This cannot fail: the bytes are buffered.
	_, _ = io.ReadFull(rw.Reader, head)
	return append(head, c.head...)
}

// refuse answers with the reason, in the status line, which many tools show, and in the body. It
// then closes the connection.
func (c *client) refuse(w http.ResponseWriter, r *http.Request, no *refusal) {
	c.takeOver(w)
	method := r.Method
	c.afterServer <- func() {
		body := no.reason + "\n"
		head := fmt.Sprintf("HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\n%s: "+
			"%s\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
			no.status, no.reason, len(body), RefusalHeader, no.kind())
		if method == http.MethodHead {
			body = ""
		}
		writeLast(c.Conn, []byte(head+body))
	}
}

// writeLast writes b and briefly reads what still arrives. Closing a socket with unread bytes would
// discard b.
func writeLast(nc net.Conn, b []byte) {
	nc.SetDeadline(time.Now().Add(lingerTime))
	if _, err := nc.Write(b); err != nil {
		return
	}
	if closeWrite(nc) == nil {
		_, _ = io.CopyN(io.Discard, nc, lingerBytes)
	}
}

// closeWrite closes the write direction of v if v supports it.
func closeWrite(v any) error {
	if w, ok := v.(interface{ CloseWrite() error }); ok {
		return w.CloseWrite()
	}
	return errors.ErrUnsupported
}
