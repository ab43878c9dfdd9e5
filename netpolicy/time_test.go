package netpolicy

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"time"
)

// brief is a limit whose end the tests wait for. It exceeds the time that a busy machine needs for
// the steps before.
const brief = 3 * time.Second

// All cases wait, so they run concurrently. t.Parallel would run only as many as there are
// processors.
func TestTimeLimits(t *testing.T) {
	t.Parallel()
	s, port := newSite(t), echo(t)
	idle, header := Limits{IdleTime: brief, HeaderTime: brief}, Limits{HeaderTime: brief}
	requests := Rule{Host: "a.test", Protocol: HTTP, Ports: []int{s.port}}
	tunnels := Rule{Host: "a.test", Protocol: TCP, Ports: []int{port}}
	secure := Rule{Host: "a.test", Ports: []int{port}}
	rests := func(t *testing.T, w *world) {
		t.Helper()
		nc, err := w.connect(target("a.test", port))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read = %v, want io.EOF", err)
		}
		wantText(t, "audit", w.audited(1).Reason, "ended after "+brief.String())
	}
	var all sync.WaitGroup
	defer all.Wait()
	for name, c := range map[string]struct {
		limits Limits
		rule   Rule
		try    func(*testing.T, *world)
	}{
		"a server that falls silent": {idle, requests, func(t *testing.T, w *world) {
			t.Helper()
			resp, err := w.client().Get(fmt.Sprintf("http://a.test:%d/slow", s.port))
			if err != nil {
				t.Fatal(err)
			}
			if body, err := io.ReadAll(resp.Body); err == nil || len(body) == 0 {
				t.Errorf("body = %q, %v; want a part of it and an error", body, err)
			}
			resp.Body.Close()
			wantText(t, "audit", w.audited(1).Reason, "without traffic")
		}},
		"a client in its body": {idle, requests, func(t *testing.T, w *world) {
			t.Helper()
			wantText(t, "answer", w.say(fmt.Sprintf(shortBody, s.port)), "HTTP/1.1 504 ended after")
			if line := w.audited(1); line.Sent != 3 {
				t.Errorf("audited %+v, want 3 bytes sent", line)
			}
		}},
		"a client that does not read": {idle, requests, func(t *testing.T, w *world) {
			t.Helper()
			fmt.Fprintf(w.dial(), "GET http://a.test:%d/large HTTP/1.1\r\nHost: a.test\r\n\r\n", s.port)
			if line := w.audited(1); line.Received == 0 || line.Received == 16<<20 {
				t.Errorf("audited %+v, want a part of the body received", line)
			}
		}},
		"half a request": {header, requests, func(t *testing.T, w *world) {
			t.Helper()
			w.refuses(t, 1, attempt{"GET http://a.test/ HTTP/1.1\r\nHost: a.te", "", "not complete within"})
		}},
		"half a handshake of SOCKS5": {header, requests, func(t *testing.T, w *world) {
			t.Helper()
			w.refuses(t, 1, attempt{"\x05\x01\x00\x05\x01", "\x05\x00", "timed out"})
		}},
		"half a ClientHello": {header, secure,
			func(t *testing.T, w *world) {
				t.Helper()
				w.noHello(t, 1, port, "\x16\x03\x01\x02\x00\x01", "timed out")
			}},
		"no ClientHello": {header, secure, func(t *testing.T, w *world) {
			t.Helper()
			w.noHello(t, 1, port, "", "timed out")
		}},
		"a tunnel that rests": {Limits{IdleTime: brief}, tunnels, rests},
		"a tunnel for long":   {Limits{MaxTime: brief}, tunnels, rests},
	} {
		all.Go(func() {
			t.Run(name, func(t *testing.T) { c.try(t, newWorld(t, Options{Limits: c.limits}, SessionOptions{}, c.rule)) })
		})
	}
}
