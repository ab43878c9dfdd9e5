package netpolicy

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"time"
)

// request serves one request of plain HTTP: one to the proxy, which names the
// server in its target, or one inside a tunnel, which has to be for the server
// that the tunnel goes to.
func (s *Session) request(c *client, w http.ResponseWriter, r *http.Request) {
	want, err := c.wanted(r)
	if err != nil {
		s.garbage(c.begun, err.Error())
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
	err = x.run()
	switch {
	case x.upgraded: // what follows goes on without the server
	case err == nil:
		f.end(nil)
	case x.answered:
		f.end(err)
		panic(http.ErrAbortHandler) // so that the client sees that it broke off
	default:
		no := f.failure(err)
		f.end(no)
		c.refuse(w, r, no)
	}
}

// wanted is what a request asks for. A request that could be read in two ways
// is refused; that Host and target agree is the parser's rule.
func (c *client) wanted(r *http.Request) (Want, error) {
	u := r.URL
	w := Want{Method: r.Method, Path: u.EscapedPath()}
	if w.Path == "" {
		w.Path = "/"
	}
	switch {
	case u.Opaque != "" || w.Path[0] != '/':
		return w, malformed("the request's target is no URL and no path")
	case u.User != nil:
		return w, malformed("a user in the URL: send it in a header")
	case c.outer != nil:
		return c.wantedInside(r, w)
	case !u.IsAbs():
		return w, malformed("this is a proxy: the request's target has to be a whole URL, as in GET http://example.com/")
	case u.Scheme != "http":
		return w, malformed("the scheme %q: https goes through CONNECT; other schemes are not carried", u.Scheme)
	}
	var err error
	w.Host, w.Port, err = hostPort(u.Host, 80)
	return w, err
}

// wantedInside: the Host field is the only name there is inside a tunnel.
func (c *client) wantedInside(r *http.Request, w Want) (Want, error) {
	if r.URL.IsAbs() && r.URL.Scheme != "http" {
		return w, malformed("the scheme %q in a tunnel of plain HTTP", r.URL.Scheme)
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

// hostPort reads a host with or without a port.
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
	mask     *mask // nil: no credential was set
	socket   bool  // a WebSocket is asked for
	answered bool  // the answer's head was written
	upgraded bool
}

// run carries the request out and the answer back.
func (x *exchange) run() error {
	f := x.f
	// What ends early must not wait for a client that does not read.
	defer context.AfterFunc(f.ctx, func() {
		if f.ended() != nil {
			x.c.SetDeadline(time.Now().Add(lingerTime))
		}
	})()
	// The server would read what is left of a body before the answer.
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

// flowKey is under what a request carries its flow to where it is dialled for.
type flowKey struct{}

// outgoing is the request as it leaves: the same method, path, query and body,
// to the decided host, with the credentials for it.
func (x *exchange) outgoing() (*http.Request, *http.Transport) {
	f, r, body := x.f, x.r, x.body
	ctx := context.WithValue(f.ctx, flowKey{}, f)
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(got httptrace.GotConnInfo) { f.reached(got.Conn.RemoteAddr()) },
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
		out.Header.Set("User-Agent", "") // else the transport names itself
	}
	transport, upgrades := f.s.transports()
	// A body could be on its way still when the connection is taken over, and both
	// would read from it.
	if x.socket = body.rest == nil && isWebSocket(r.Header); x.socket {
		transport = upgrades
		out.Header.Set("Connection", "Upgrade")
		out.Header.Set("Upgrade", "websocket")
	}
	x.mask = f.setSecrets(out)
	return out, transport
}

// connectionFields are about one connection, and are not passed on (RFC 9110,
// 7.6.1), credentials for proxies among them.
var connectionFields = []string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authentication-Info",
	"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Http2-Settings",
}

// forwardable is a copy without fields about the connection, and without those
// that Connection names.
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

// isWebSocket: no other protocol is taken up. One that is plain HTTP again would
// carry requests that nobody decided.
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
