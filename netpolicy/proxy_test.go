package netpolicy

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// attempt is a complete connection: the bytes to send, how the answer starts, and a part of the
// reason in both the answer and the audit.
type attempt struct{ send, begins, reason string }

// refuses makes an attempt and checks the n-th audit record.
func (w *world) refuses(t *testing.T, n int, c attempt) {
	t.Helper()
	got := w.say(c.send)
	line := w.audited(n)
	what := truncate(c.send)
	if !strings.HasPrefix(got, c.begins) || c.begins == "" && got != "" {
		t.Errorf("%s: answered %.100q, want %q", what, got, c.begins)
	}
	if line.Allowed && !strings.HasPrefix(c.begins, "HTTP/1.1 50") && c.begins != "\x05\x00\x05\x04" &&
		c.begins != "\x05\x00\x05\x05" || line.Reason == "" ||
		strings.ContainsAny(line.Reason+line.Host+line.Path, "\r\n\x00") {
		t.Errorf("%s: audited %+v, want a reason on one line, and allowed only if the connect failed", what, line)
	}
	wantText(t, what+" in the audit", line.Reason, c.reason)
	if c.reason != "" && strings.HasPrefix(c.begins, "HTTP") {
		status, body, _ := strings.Cut(got, "\r\n")
		wantText(t, what+" in the status", status, line.Reason)
		wantText(t, what+" in the body", body, line.Reason)
	}
}

func TestProxyRefusesWithReason(t *testing.T) {
	o := Options{
		Resolver: answers{
			"a.test": loopback, "inner.example": {netip.MustParseAddr("10.1.2.3")},
			"meta.test":   {netip.MustParseAddr("169.254.169.254")},
			"own.example": loopback, "nat64.example": {netip.MustParseAddr("64:ff9b::7f00:1")},
		},
	}
	closed := closedPort(t)
	w := newWorld(t, o, SessionOptions{Ceiling: compiled(t,
		Rule{Host: "*", Protocol: TCP, Ports: []int{80, 443, 8080, closed}}, Rule{Host: "over.example", Deny: true})},
		Rule{Host: "*.example"}, Rule{Host: "*.test", Protocol: HTTP},
		Rule{Host: "a.test", Protocol: TCP, Ports: []int{closed}},
		Rule{Host: "a.test", Protocol: HTTP, Ports: []int{8080}, Methods: []string{"GET"}, Paths: []string{"/open/*"}})
	long := strings.Repeat("x", 40<<10)
	cases := []attempt{
		{"CONNECT evil.org:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "no rule allows"},
		{"CONNECT a.example:22 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "a.example:22"},
		{"CONNECT over.example:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "ceiling"},
		{"CONNECT inner.example:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "10.1.2.3, a private address"},
		{"CONNECT own.example:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "a loopback address"},
		{"CONNECT nat64.example:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "64:ff9b::7f00:1"},
		{"GET http://meta.test/latest HTTP/1.1\r\nHost: meta.test\r\n\r\n", "HTTP/1.1 403 ", "metadata"},
		{"CONNECT gone.example:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 502 ", "has no address"},
		{fmt.Sprintf("CONNECT a.test:%d HTTP/1.1\r\n\r\n", closed), "HTTP/1.1 502 ", "connection refused"},
		{"CONNECT 127.0.0.1:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "127.0.0.1:443"},
		{"CONNECT 2130706433:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "ends in a number"},
		{"CONNECT 0177.0.0.1:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "ends in a number"},
		{"CONNECT a.example@evil.org:443 HTTP/1.1\r\n\r\n", "HTTP/1.1 403 ", "invalid host "},
		{"CONNECT a.example HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", "host:port"},
		{"CONNECT a.example:0 HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", "a port from 1"},
		{"CONNECT a.example:+443 HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", ""},
		{"GET http://u:p@a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", "the URL contains a user"},
		{"GET http://a.test@evil.org/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", "the URL contains a user"},
		{"GET https://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", "CONNECT for https"},
		{"GET ftp://a.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", "scheme \"ftp\" is not supported"},
		{"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", "this is a proxy"},
		{"GET http:a.test HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", ""},
		{"OPTIONS * HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", ""},
		{"GET http://a.test:99999/ HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 400 ", ""},
		{"POST http://a.test:8080/open/x HTTP/1.1\r\nHost: a.test\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 403 ", "POST"},
		{"GET http://a.test:8080/open/../shut HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 403 ", ""},
		{"GET http://a.test:8080/open/%2e%2e/shut HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 403 ", ""},
		{"GET http://a.test:8080/open/%2f..%5cshut HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 403 ", ""},
		{"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX: a\rb\r\n\r\n", "HTTP/1.1 400 ", ""},
		{"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "HTTP/1.1 400 ",
			""},
		{"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked, identity\r\n\r\n", "HTTP/1.1 501 ", ""},
		{"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nHost: b.test\r\n\r\n", "HTTP/1.1 400 ", ""},
		{"GET http://a.test/ HTTP/1.1\r\nHost: a.test\r\nX: " + long + "\r\n\r\n", "HTTP/1.1 431 ", ""},
		{"GET http://a.test/%00%0d%0aX:y HTTP/1.1\r\nHost: a.test\r\n\r\n", "HTTP/1.1 502 ", ""},
		{"\x16\x03\x01\x00\x05hello\r\n\r\n", "HTTP/1.1 400 ", ""},
		{"\x00\xff garbage \r\n\r\n", "HTTP/1.1 400 ", ""},
		{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1 ", ""},
		{"\x05\x01\x00\x05\x01\x00\x03\x08evil.org\x01\xbb", "\x05\x00\x05\x02", "no rule allows"},
		{"\x05\x01\x00\x05\x01\x00\x03\x0dinner.example\x01\xbb", "\x05\x00\x05\x02", "private"},
		{"\x05\x01\x00\x05\x01\x00\x03\x0cgone.example\x01\xbb", "\x05\x00\x05\x04", "has no address"},
		{"\x05\x01\x00\x05\x01\x00\x03\x06a.test" + string([]byte{byte(closed >> 8), byte(closed)}), "\x05\x00\x05\x05",
			"refused"},
		{"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x01\xbb", "\x05\x00\x05\x02", "127.0.0.1"},
		{"\x05\x01\x00\x05\x01\x00\x04" + string(netip.MustParseAddr("::ffff:127.0.0.1").AsSlice()) + "\x01\xbb",
			"\x05\x00\x05\x02", "127.0.0.1"},
		{"\x05\x01\x00\x05\x01\x00\x03\x06a\x00\r\nbc\x01\xbb", "\x05\x00\x05\x02", "invalid host "},
		{"\x05\x01\x00\x05\x02\x00\x03\x06a.test\x01\xbb", "\x05\x00\x05\x07", "use CONNECT"},
		{"\x05\x01\x00\x05\x01\x00\x09\x06a.test\x01\xbb", "\x05\x00\x05\x08", "address type 9"},
		{"\x05\x01\x00\x05\x01\x00\x03\x06a.test\x00\x00", "\x05\x00\x05\x01", "port 0"},
		{"\x05\x01\x00\x04\x01\x00\x03\x06a.test\x01\xbb", "\x05\x00\x05\x01", "invalid request"},
		{"\x05\x01\x02", "\x05\xff", "requires authentication"},
		{"\x05\x00", "\x05\xff", "requires authentication"},
	}
	for i, c := range cases {
		w.refuses(t, i+1, c)
	}
	if st := w.s.State(); len(st.Recent) > keptRecent || st.Refused+st.Allowed != int64(len(cases)) {
		t.Errorf("%d refused, %d allowed, %d recent; want %d in all, at most %d recent", st.Refused, st.Allowed,
			len(st.Recent), len(cases), keptRecent)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) != len(cases) {
		t.Errorf("audited %d lines for %d connections, want one each", len(w.lines), len(cases))
	}
}

// Serve returns after the audit of all connections.
func TestServeReturnsAfterAudit(t *testing.T) {
	w := newWorld(t, Options{}, SessionOptions{})
	w.mu.Lock() // blocks the audit
	wantText(t, "answer", w.say("garbage\r\n\r\n"), "HTTP/1.1 400")
	ended := make(chan struct{})
	go func() { w.stop(); close(ended) }()
	select {
	case <-ended:
		t.Error("the session ended before its last line was audited, want it to wait")
	case <-time.After(100 * time.Millisecond):
	}
	w.mu.Unlock()
	<-ended
}

func closedPort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A connection is not idle while a slow reader takes bytes that were sent at once.
func TestSlowReaderIsNotIdle(t *testing.T) {
	ours, theirs := socketPair(t)
	f := &flow{}
	f.watchQueues(theirs, struct{}{})
	piece := make([]byte, 1000)
	for i, step := range []struct {
		do      func([]byte) (int, error)
		drained bool
	}{{theirs.Write, false}, {nil, false}, {ours.Read, true}, {nil, false}, {theirs.Write, false}} {
		if step.do != nil {
			if n, err := step.do(piece); n != len(piece) {
				t.Fatalf("wrote %d bytes, %v; want %d", n, err, len(piece))
			}
		}
		if got := f.queuesMoved(); got != step.drained {
			t.Errorf("step %d: queuesMoved = %v, want %v", i, got, step.drained)
		}
	}
}

func TestLimits(t *testing.T) {
	port := echo(t)
	rule := Rule{Host: "a.test", Ports: []int{port}, Protocol: TCP}
	t.Run("connections", func(t *testing.T) {
		w := newWorld(t, Options{Limits: Limits{Connections: 1}}, SessionOptions{}, rule)
		if _, err := w.connect(target("a.test", port)); err != nil {
			t.Fatal(err)
		}
		_, err := w.connect(target("a.test", port))
		wantText(t, "second", fmt.Sprint(err), "503 this sandbox has reached its limit of 1 open connections")
		_, err = w.socksTo(target("a.test", port))
		wantText(t, "third", fmt.Sprint(err), "reply 1")
	})
	t.Run("connections of all", func(t *testing.T) {
		w := newWorld(t, Options{}, SessionOptions{}, rule)
		w.g.maxOpen = 1
		for range freeShare {
			if _, err := w.connect(target("a.test", port)); err != nil {
				t.Fatal(err)
			}
		}
		_, err := w.connect(target("a.test", port))
		wantText(t, "over all", fmt.Sprint(err), "503 all sandboxes together")
	})
	t.Run("bytes", func(t *testing.T) {
		w := newWorld(t, Options{Limits: Limits{Bytes: 100_000}}, SessionOptions{}, rule)
		nc, err := w.connect(target("a.test", port))
		if err != nil {
			t.Fatal(err)
		}
		go nc.Write(make([]byte, 1<<20))
		if n, _ := io.Copy(io.Discard, nc); n > 100_000 {
			t.Errorf("received %d bytes, want at most 100000", n)
		}
		wantText(t, "audit", w.audited(1).Reason, "this sandbox has used its limit of 100000 bytes")
		_, err = w.connect(target("a.test", port))
		wantText(t, "next", fmt.Sprint(err), "503")
		st := w.s.State()
		w = newWorld(t, Options{Limits: Limits{Bytes: 100_000}}, SessionOptions{Sent: st.Sent, Received: st.Received}, rule)
		_, err = w.connect(target("a.test", port))
		wantText(t, "next session", fmt.Sprint(err), "503")
	})
}
