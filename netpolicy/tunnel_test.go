package netpolicy

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// socksTo opens a tunnel to a name with SOCKS5. A reply other than 0 is an error.
func (w *world) socksTo(to string) (net.Conn, error) {
	w.t.Helper()
	host, port, err := splitTarget(to)
	if err != nil {
		w.t.Fatal(err)
	}
	nc := w.dial()
	ask := append([]byte{5, 2, 2, 0}, 5, 1, 0, 3, byte(len(host)))
	ask = append(append(ask, host...), byte(port>>8), byte(port))
	nc.Write(ask)
	var reply [12]byte
	if _, err := io.ReadFull(nc, reply[:]); err != nil {
		return nil, err
	}
	if reply[3] != 0 {
		return nil, fmt.Errorf("SOCKS5 reply %d", reply[3])
	}
	return nc, nil
}

// oneWay hides CloseWrite.
type oneWay struct{ net.Conn }

func TestTunnelRelaysBothDirections(t *testing.T) {
	port := echo(t)
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Ports: []int{port}, Protocol: TCP})
	for i, open := range []func(string) (net.Conn, error){w.connect, w.socksTo} {
		nc, err := open(target("A.Test.", port))
		if err != nil {
			t.Fatal(err)
		}
		sent := make([]byte, 1<<20)
		rand.Read(sent)
		go func() {
			nc.Write(sent)
			closeWrite(nc)
		}()
		got, err := io.ReadAll(nc)
		if err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("received %d bytes, %v; want the %d sent ones back", len(got), err, len(sent))
		}
		line := w.audited(i + 1)
		if !line.Allowed || line.Sent != 1<<20 || line.Received != 1<<20 || line.Method != http.MethodConnect ||
			line.Host != "a.test" || line.Port != port || line.Protocol != TCP || line.Address != target("127.0.0.1", port) ||
			line.Session != "lease-1" {
			t.Errorf("audited %+v, want lease-1's tunnel to a.test:%d with 1 MiB each way", line, port)
		}
	}
}

// The server's last bytes and its end reach a stream without CloseWrite.
func TestTunnelOnStreamWithoutCloseWrite(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Ports: []int{port}, Protocol: TCP})
	ours, theirs := socketPair(t)
	w.in <- oneWay{theirs}
	fmt.Fprintf(ours, "CONNECT a.test:%d HTTP/1.1\r\n\r\n", port)
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Repeat("last words ", 100_000)
	go func() {
		io.WriteString(server, want)
		server.Close()
	}()
	got, err := io.ReadAll(ours)
	if err != nil || !strings.HasSuffix(string(got), want) {
		t.Errorf("received %d bytes, %v; want them to end with the %d of the server", len(got), err, len(want))
	}
}

// secureServer is an HTTPS server for names below .test, with a self-signed certificate.
func secureServer(tb testing.TB, h http.Handler) (*httptest.Server, *x509.CertPool) {
	tb.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // errors of refused clients
	s.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(tb)}}
	s.StartTLS()
	tb.Cleanup(s.Close)
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return s, roots
}

// inPieces writes TLS records of one byte each, as clients do to evade inspection.
type inPieces struct{ net.Conn }

func (s inPieces) Write(p []byte) (int, error) {
	if len(p) < 5 || p[0] != 22 || p[5] != 1 {
		return s.Conn.Write(p)
	}
	for _, b := range p[5:] {
		if _, err := s.Conn.Write([]byte{22, 3, 1, 0, 1, b}); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

func TestTLSTunnelRequiresServerName(t *testing.T) {
	srv, roots := secureServer(t,
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	port := portOf(t, srv)
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Ports: []int{port}},
		Rule{Host: "127.0.0.1", Ports: []int{port}})
	n := 0
	try := func(what, host, name string, wrap func(net.Conn) net.Conn, change func(*tls.Config)) (error, Connection) {
		t.Helper()
		nc, err := w.connect(target(host, port))
		if err != nil {
			t.Fatalf("%s: connect to %s = %v, want no error", what, host, err)
		}
		defer nc.Close()
		if wrap != nil {
			nc = wrap(nc)
		}
		o := &tls.Config{ServerName: name, RootCAs: roots}
		if change != nil {
			change(o)
		}
		err = tls.Client(nc, o).Handshake()
		nc.Close()
		n++
		return err, w.audited(n)
	}
	if err, line := try("right name", "a.test", "a.test", nil, nil); err != nil || !line.Allowed || line.Protocol != TLS {
		t.Errorf("right name: %v, audited %+v; want no error, allowed as TLS", err, line)
	}
	if err, line := try("in pieces", "a.test", "a.test", func(c net.Conn) net.Conn { return inPieces{c} },
		nil); err != nil || !line.Allowed {
		t.Errorf("in pieces: %v, audited %+v; want no error, allowed", err, line)
	}
	refused := func(what string, err error, line Connection, reason string) {
		t.Helper()
		if err == nil || line.Allowed {
			t.Errorf("%s: %v, audited %+v; want a refusal", what, err, line)
		}
		wantText(t, what, line.Reason, reason)
		wantText(t, what, fmt.Sprint(err), "access denied")
	}
	err, line := try("other name", "a.test", "b.test", nil, nil)
	refused("other name", err, line, "the ClientHello is for b.test")
	err, line = try("no name", "a.test", "", nil, func(o *tls.Config) { o.InsecureSkipVerify = true })
	refused("no name", err, line, "has no server name")
	err, line = try("ech", "a.test", "a.test", nil,
		func(o *tls.Config) { o.EncryptedClientHelloConfigList = echConfig(t) })
	refused("ech", err, line, "ECH")

	n++
	w.noHello(t, n, port, "GET / HTTP/1.1\r\n\r\n", "does not start with TLS")
	// The rule allows the bare address, but it is a loopback address.
	if _, err := w.connect(target("127.0.0.1", port)); err == nil {
		t.Error("connect to loopback by a bare address succeeded, want a refusal")
	}
}

// noHello sends something other than a ClientHello through a tunnel, and checks the reason in the
// n-th audit record.
func (w *world) noHello(t *testing.T, n, port int, send, reason string) {
	t.Helper()
	nc, err := w.connect(target("a.test", port))
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(nc, send)
	alert, _ := io.ReadAll(nc)
	if !bytes.Equal(alert, alertDenied) {
		t.Errorf("%q: answer = %x, want the alert %x", send, alert, alertDenied)
	}
	if line := w.audited(n); line.Allowed || line.Received != 0 {
		t.Errorf("%q: audited %+v, want a refusal with nothing received", send, line)
	} else {
		wantText(t, "audit", line.Reason, reason)
	}
}

func TestSetEndsForbiddenConnections(t *testing.T) {
	port := echo(t)
	allow := func(host string) Rule { return Rule{Host: host, Ports: []int{port}, Protocol: TCP} }
	w := newWorld(t, Options{}, SessionOptions{}, allow("a.test"), allow("b.test"))
	a, err := w.connect(target("a.test", port))
	if err != nil {
		t.Fatal(err)
	}
	b, err := w.connect(target("b.test", port))
	if err != nil {
		t.Fatal(err)
	}
	w.s.Set(compiled(t, allow("b.test")), nil)
	if _, err := a.Read(make([]byte, 1)); err == nil {
		t.Error("the tunnel is still open, want its end")
	}
	line := w.audited(1)
	wantText(t, "audit", line.Reason, "ended by a change of the rules")
	if _, err := w.connect(target("a.test", port)); err == nil {
		t.Error("connect succeeded, want a refusal")
	}
	io.WriteString(b, "x")
	if _, err := io.ReadFull(b, make([]byte, 1)); err != nil {
		t.Errorf("Read from the other tunnel = %v, want it open", err)
	}
	w.s.Set(compiled(t, allow("b.test"), Rule{Host: "127.0.0.0/8", Deny: true}), nil)
	if _, err := b.Read(make([]byte, 1)); err == nil {
		t.Error("a tunnel to a denied range is still open, want its end")
	}
	wantText(t, "audit", w.audited(3).Reason, "127.0.0.0/8")
	// This one was still connecting, so its address was unknown.
	f, err := w.s.begin(t.Context(), newClient(t.Context(), w.s, nil, nil), Want{Host: "b.test", Port: port, Tunnel: true})
	if err == nil {
		f.recordAddress(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	}
	if f.earlyEnd() == nil {
		t.Errorf("earlyEnd = nil after a late address, want an error; connect = %v", err)
	}
	f.end(nil)
	w.s.Set(nil, nil)
	if st := w.s.State(); st.Refused != 2 || st.Allowed != 2 || len(st.Recent) != 4 {
		t.Errorf("state = %+v, want 2 refused, 2 allowed, 4 recent", st)
	}
}

func TestSessionEndEndsConnections(t *testing.T) {
	port := echo(t)
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Ports: []int{port}, Protocol: TCP})
	if _, err := w.connect(target("a.test", port)); err != nil {
		t.Fatal(err)
	}
	silent, half := w.dial(), w.dial()
	io.WriteString(half, "GET http://a.test/ HT")
	w.stop()
	for _, nc := range []net.Conn{silent, half} {
		if _, err := nc.Read(make([]byte, 1)); err == nil {
			t.Error("a connection is still open, want its end")
		}
	}
	reasons := ""
	for n := range 3 {
		reasons += w.audited(n+1).Reason + "\n"
	}
	wantText(t, "audit", reasons, errSessionEnd.Error())
	if st := w.s.State(); st.Open != 0 {
		t.Errorf("%d connections are open, want 0", st.Open)
	}
}

// TestBrokenTunnelIsAudited checks that the audit says why a tunnel broke, without the host's
// addresses.
func TestBrokenTunnelIsAudited(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	w := newWorld(t, Options{}, SessionOptions{}, Rule{Host: "a.test", Ports: []int{port}, Protocol: TCP})
	if _, err := w.connect(target("a.test", port)); err != nil {
		t.Fatal(err)
	}
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server.(*net.TCPConn).SetLinger(0) // makes close send a reset
	server.Close()
	if line := w.audited(1); !line.Allowed || line.Reason != "the connection broke off: connection reset by peer" {
		t.Errorf("audited %+v, want allowed and the reason \"connection reset by peer\"", line)
	}
}
