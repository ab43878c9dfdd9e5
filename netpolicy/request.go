package netpolicy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"time"
)

// request serves one plain HTTP request: one to the proxy, whose target names the server, or one
// inside a tunnel, which must be for the tunnel's server.
func (s *Session) request(c *client, w http.ResponseWriter, r *http.Request) {
	want, err := c.requestWant(r)
	if err != nil {
		s.recordInvalid(c.begun, err.Error())
		c.refuse(w, r, asRefusal(err))
		return
	}
	f, err := s.begin(c.ctx, c, want)
	stop := context.AfterFunc(r.Context(), func() { f.cancel(errGone) })
	defer stop()
	if err != nil {
		f.end(err)
		c.refuse(w, r, asRefusal(err))
		return
	}
	x := &exchange{f: f, c: c, w: w, r: r}
	err = x.run() //nolint:contextcheck // it ends with the flow
	switch {
	case x.upgraded: // the relay ends the flow
	case err == nil:
		f.end(nil)
	case x.answered:
		f.end(err)
		panic(http.ErrAbortHandler) // shows the client that the answer is incomplete
	default:
		no := f.failure(err)
		f.end(no)
		c.refuse(w, r, no)
	}
}

// requestWant returns the Want of a request. It refuses ambiguous requests. The parser already
// ensures that Host and target agree.
func (c *client) requestWant(r *http.Request) (Want, error) {
	u := r.URL
	w := Want{Method: r.Method, Path: u.EscapedPath()}
	if w.Path == "" {
		w.Path = "/"
	}
	switch {
	case u.Opaque != "" || w.Path[0] != '/':
		return w, malformed("the request's target must be a URL or a path")
	case u.User != nil:
		return w, malformed("the URL contains a user: send credentials in a header")
	case c.outer != nil:
		return c.tunnelWant(r, w)
	case !u.IsAbs():
		return w, malformed("this is a proxy: the request's target must be an absolute URL, as in GET http://example.com/")
	case u.Scheme != "http":
		return w, malformed("scheme %q is not supported: use http, or CONNECT for https", u.Scheme)
	}
	var err error
	w.Host, w.Port, err = hostPort(u.Host, 80)
	return w, err
}

// tunnelWant returns the Want of a request inside a tunnel. Only its Host field names the server.
func (c *client) tunnelWant(r *http.Request, w Want) (Want, error) {
	if r.URL.IsAbs() && r.URL.Scheme != "http" {
		return w, malformed("scheme %q is not supported in a tunnel of plain HTTP", r.URL.Scheme)
	}
	host, port, err := hostPort(r.Host, 80)
	if err != nil {
		return w, err
	}
	name, _, err := CanonicalHost(host)
	if to := c.outer; err != nil || name != to.decision.Host || port != to.want.Port {
		return w, denied("the request in the tunnel to " + target(to.decision.Host, to.want.Port) + " is for " + r.Host)
	}
	w.Host, w.Port = name, port
	return w, nil
}

// hostPort parses a host with an optional port.
func hostPort(s string, port int) (string, int, error) {
	if i := strings.LastIndexByte(s, ':'); i < 0 || i < strings.LastIndexByte(s, ']') {
		return s, port, nil
	}
	host, port, err := splitTarget(s)
	if err != nil {
		return "", 0, malformed("the host %q is not host:port", s)
	}
	return host, port, nil
}

// exchange is one request and its answer.
type exchange struct {
	f *flow
	c *client
	w http.ResponseWriter
	r *http.Request

	body     *upload
	mask     *mask // nil: no credentials were added
	socket   bool  // the client requests a WebSocket
	answered bool  // the answer's header was written
	upgraded bool
}

// run sends the request and forwards the answer.
func (x *exchange) run() error {
	f := x.f
	// An early end must not wait for a client that does not read.
	defer context.AfterFunc(f.ctx, func() {
		if f.earlyEnd() != nil {
			x.c.SetDeadline(time.Now().Add(lingerTime))
		}
	})()
	// Otherwise the HTTP server would read the rest of the body before the answer.
	_ = http.NewResponseController(x.w).EnableFullDuplex()
	x.body = newUpload(f, x.r)
	defer x.body.stop(x.c)
	out, transport := x.outgoing()
	resp, err := transport.RoundTrip(out)
	if err != nil {
		if from := x.body.failed(); from != nil {
			return malformed("the request's body ended early: %s", clientError(from))
		}
		return x.mask.unreached("request to "+target(f.decision.Host, f.decision.Port), err)
	}
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return x.upgrade(resp)
	}
	defer resp.Body.Close()
	return x.answer(resp)
}

// flowKey is the context key of a request's flow, for dialing.
type flowKey struct{}

// outgoing returns the request to send, and its transport: the same method, path, query and body,
// to the decided host, with its credentials.
func (x *exchange) outgoing() (*http.Request, *http.Transport) {
	f, r, body := x.f, x.r, x.body
	ctx := context.WithValue(f.ctx, flowKey{}, f)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { f.recordAddress(got.Conn.RemoteAddr()) },
	})
	out := (&http.Request{
		Method: r.Method, URL: outURL(f.decision, r.URL), Host: "",
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: forwardable(r.Header), ContentLength: r.ContentLength,
	}).WithContext(ctx)
	if body.rest != nil {
		out.Body, out.Trailer = body, body.trailer
	} else {
		out.ContentLength = 0
	}
	if _, ok := out.Header["User-Agent"]; !ok {
		out.Header.Set("User-Agent", "") // prevents the transport from adding its own
	}
	transport, upgrades := f.s.transports()
	// With a body, the transport could still read from the connection after the takeover.
	if x.socket = body.rest == nil && isWebSocket(r.Header); x.socket {
		transport = upgrades
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", "websocket")
	}
	x.mask = f.setSecrets(out)
	return out, transport
}

// connectionFields are about a single connection and are not forwarded (RFC 9110, section 7.6.1).
// They include credentials for proxies.
var connectionFields = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
}

// forwardable returns a copy of h without the fields about the connection and those that Connection
// names.
func forwardable(h http.Header) http.Header {
	out := h.Clone()
	for _, list := range h["Connection"] {
		for field := range strings.SplitSeq(list, ",") {
			out.Del(textproto.TrimString(field))
		}
	}
	for _, field := range connectionFields {
		out.Del(field)
	}
	return out
}

// isWebSocket reports whether a request or answer is for a WebSocket. Other protocols are refused:
// plain HTTP, for example, would carry undecided requests.
func isWebSocket(h http.Header) bool {
	if !strings.EqualFold(h.Get("Upgrade"), "websocket") || len(h["Upgrade"]) != 1 {
		return false
	}
	for _, list := range h["Connection"] {
		for one := range strings.SplitSeq(list, ",") {
			if strings.EqualFold(textproto.TrimString(one), "upgrade") {
				return true
			}
		}
	}
	return false
}
