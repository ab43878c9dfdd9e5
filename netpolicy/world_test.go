package netpolicy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// soon limits every wait of the tests.
const soon = 30 * time.Second

// answers is a resolver with fixed answers.
type answers map[string][]netip.Addr

func (n answers) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	if all, ok := n[strings.TrimSuffix(host, ".")]; ok {
		return append([]netip.Addr(nil), all...), nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
}

var loopback = []netip.Addr{netip.MustParseAddr("127.0.0.1")}

// world is a gateway with one session, and its connections from the sandbox.
type world struct {
	t    testing.TB
	g    *Gateway
	s    *Session
	in   chan net.Conn
	stop func() // ends the session and waits

	mu    sync.Mutex
	lines []Connection
	more  chan struct{}
}

// newWorld serves rules. Names below .test resolve to 127.0.0.1, which is allowed for them.
func newWorld(tb testing.TB, o Options, so SessionOptions, rules ...Rule) *world {
	tb.Helper()
	w := &world{t: tb, in: make(chan net.Conn), more: make(chan struct{}, 1<<16)}
	if o.Resolver == nil {
		o.Resolver = answers{"a.test": loopback, "b.test": loopback, "secret.test": loopback}
	}
	if o.Private == nil {
		o.Private = []Private{{Hosts: []string{"*.test"}, Ranges: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}
	}
	o.Audit = func(c Connection) {
		w.mu.Lock()
		w.lines = append(w.lines, c)
		w.mu.Unlock()
		w.more <- struct{}{}
	}
	g, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	so.Name, so.Rules = "lease-1", compiled(tb, rules...)
	w.g, w.s = g, g.Session(so)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- w.s.Serve(ctx, w.accept) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			tb.Error(err)
		}
	})
	tb.Cleanup(func() {
		w.stop()
		if err := g.Close(); err != nil {
			tb.Error(err)
		}
	})
	return w
}

func compiled(tb testing.TB, rules ...Rule) *Rules {
	tb.Helper()
	r, err := Compile(rules)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func (w *world) accept(ctx context.Context) (net.Conn, error) {
	select {
	case nc := <-w.in:
		return nc, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// dial returns a connection from the sandbox: one end of a socket pair.
func (w *world) dial() net.Conn {
	w.t.Helper()
	ours, theirs := socketPair(w.t)
	select {
	case w.in <- theirs:
	case <-time.After(soon):
		w.t.Fatalf("the session did not accept the connection, want it within %s", soon)
	}
	return ours
}

func socketPair(tb testing.TB) (a, b net.Conn) {
	tb.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	conns := [2]net.Conn{}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		if conns[i], err = net.FileConn(f); err != nil {
			tb.Fatal(err)
		}
		f.Close()
	}
	conns[0].SetDeadline(time.Now().Add(6 * soon))
	tb.Cleanup(func() { conns[0].Close(); conns[1].Close() })
	return conns[0], conns[1]
}

// say writes a text and returns everything that is answered.
func (w *world) say(text string) string {
	w.t.Helper()
	nc := w.dial()
	if _, err := io.WriteString(nc, text); err != nil {
		w.t.Fatal(err)
	}
	b, _ := io.ReadAll(nc)
	return string(b)
}

// connect opens a tunnel. An answer other than 200 is an error.
func (w *world) connect(target string) (net.Conn, error) {
	w.t.Helper()
	nc := w.dial()
	fmt.Fprintf(nc, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	// Read byte by byte, because the next bytes belong to the tunnel.
	var head []byte
	for b := make([]byte, 1); !bytes.HasSuffix(head, []byte("\r\n\r\n")); {
		if _, err := io.ReadFull(nc, b); err != nil {
			return nil, err
		}
		head = append(head, b[0])
	}
	status, _, _ := strings.Cut(string(head), "\r\n")
	if status != "HTTP/1.1 200 Connection established" {
		return nil, errors.New(strings.TrimPrefix(status, "HTTP/1.1 "))
	}
	return nc, nil
}

// client returns a client that sends requests through the proxy.
func (w *world) client() *http.Client {
	proxy := &url.URL{Scheme: "http", Host: "127.0.0.1:3128"}
	tr := &http.Transport{
		Proxy:       http.ProxyURL(proxy),
		DialContext: func(context.Context, string, string) (net.Conn, error) { return w.dial(), nil },
	}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 3 * soon,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// audited waits for the n-th audit record, counted from one, and returns it.
func (w *world) audited(n int) Connection {
	w.t.Helper()
	end := time.After(soon)
	for {
		w.mu.Lock()
		if len(w.lines) >= n {
			defer w.mu.Unlock()
			return w.lines[n-1]
		}
		w.mu.Unlock()
		select {
		case <-w.more:
		case <-end:
			w.t.Fatalf("the audit has no line %d, want it in time", n)
		}
	}
}

// echo starts a server that sends back what it receives until the client ends, and returns its
// port.
func echo(tb testing.TB) int {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer nc.Close()
				_, _ = io.Copy(nc, nc)
			})
		}
	})
	tb.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().(*net.TCPAddr).Port
}

func portOf(tb testing.TB, s *httptest.Server) int {
	tb.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		tb.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		tb.Fatal(err)
	}
	return port
}

func wantText(t *testing.T, what, text, part string) {
	t.Helper()
	if !strings.Contains(text, part) {
		t.Errorf("%s = %q, want it to contain %q", what, text, part)
	}
}
