package server

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// world is the host and the commands of a test: streams of a server, and connections to its proxy.
type world struct {
	t *testing.T
	s *Server
}

// newWorld enables the proxy until the test ends.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, s: testServer(t, false)}
	w.turn(wire.Egress{On: true})
	t.Cleanup(func() { w.turn(wire.Egress{}) })
	return w
}

func (w *world) turn(e wire.Egress) { ask[struct{}](w.t, w.s, wire.OpEgress, e) }

// connect connects to the proxy, as a command does.
func (w *world) connect() *net.TCPConn {
	w.t.Helper()
	nc, err := net.DialTimeout("tcp", "127.0.0.1:"+proxyPort, bound)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(bound)); err != nil {
		w.t.Fatal(err)
	}
	return nc.(*net.TCPConn)
}

// same checks that two ends belong to one connection, and that each direction ends separately.
func same(t *testing.T, a, b interface {
	net.Conn
	CloseWrite() error
}) {
	t.Helper()
	want := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for _, from := range []struct {
		from, to interface {
			net.Conn
			CloseWrite() error
		}
	}{{a, b}, {b, a}} {
		sent := make(chan error, 1)
		go func() {
			_, err := from.from.Write(want)
			if err == nil {
				err = from.from.CloseWrite()
			}
			sent <- err
		}()
		got, err := io.ReadAll(from.to)
		if err != nil || !bytes.Equal(got, want) {
			t.Fatalf("read %d bytes, %v; want the %d bytes that were sent and no error", len(got), err,
				len(want))
		}
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
}

func TestProxyOffersConnectionsToLiveStreams(t *testing.T) {
	w := newWorld(t)
	waits := dial(t, w.s, wire.OpAccept, nil)
	c := w.connect()
	waits.untilStarted()
	same(t, c, waits.nc.(*net.UnixConn))

	dead := dial(t, w.s, wire.OpAccept, nil)
	dead.nc.Close()
	c = w.connect() // it waits, or is offered to the dead stream first
	waits = dial(t, w.s, wire.OpAccept, nil)
	waits.untilStarted()
	same(t, c, waits.nc.(*net.UnixConn))

	early := dial(t, w.s, wire.OpAccept, nil)
	if _, err := early.nc.Write([]byte("GET / HTTP/1.1\r\n")); err != nil {
		t.Fatal(err)
	}
	if a := early.all(); a.failure == nil || a.failure.Code != wire.InvalidArgument {
		t.Errorf("accept with bytes before its turn: %s, want invalid_argument", describe(a.failure))
	}
	// one is held for the next connection
	eventually(t, "all connections are forgotten", func() bool { return len(w.s.proxy.conns.slots) <= 1 })
}

func TestProxyOffClosesConnections(t *testing.T) {
	w := newWorld(t)
	waits := dial(t, w.s, wire.OpAccept, nil)
	carried := w.connect()
	waits.untilStarted()
	queued := w.connect()
	w.turn(wire.Egress{On: true, Env: map[string]string{"TOKEN": "placeholder"}}) // existing connections are not affected
	if _, err := carried.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(waits.nc, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	late := dial(t, w.s, wire.OpAccept, nil)
	late.untilStarted() // the queued one
	late = dial(t, w.s, wire.OpAccept, nil)
	w.turn(wire.Egress{})
	w.turn(wire.Egress{})
	for _, end := range []net.Conn{carried, queued, waits.nc} {
		if n, err := end.Read(make([]byte, 1)); err == nil {
			t.Errorf("read %d bytes of a connection after the proxy was off, want an error", n)
		}
	}
	if a := late.all(); a.failure == nil || a.failure.Code != wire.FailedPrecondition {
		t.Errorf("accept that waited when the proxy went off: %s, want failed_precondition",
			describe(a.failure))
	}
	if nc, err := net.Dial("tcp", "127.0.0.1:"+proxyPort); err == nil {
		nc.Close()
		t.Error("connect while the proxy is off succeeded, want an error")
	}
	if a := dial(t, w.s, wire.OpAccept, nil).all(); a.failure == nil || a.failure.Code != wire.FailedPrecondition {
		t.Errorf("accept while the proxy is off: %s, want failed_precondition", describe(a.failure))
	}
	ln, err := net.Listen("tcp", "127.0.0.1:"+proxyPort)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if a := dial(t, w.s, wire.OpEgress, wire.Egress{On: true}).all(); a.failure == nil ||
		a.failure.Code != wire.FailedPrecondition || !strings.Contains(a.failure.Message, "3128") {
		t.Errorf("egress while the port is taken: %s, want failed_precondition that names port 3128",
			describe(a.failure))
	}
}

func TestCommandsGetProxyEnvironment(t *testing.T) {
	w := newWorld(t)
	w.turn(wire.Egress{On: true, Env: map[string]string{"TOKEN": "placeholder", "NO_PROXY": "example.org"}})
	cmd := sh(`echo "$http_proxy $HTTPS_PROXY $all_proxy $NO_PROXY $TOKEN $https_proxy"`)
	cmd.Env = map[string]string{"https_proxy": "mine"}
	a, _ := run1(t, w.s, cmd)
	const url = "http://127.0.0.1:3128"
	if got, want := a.stdout.String(),
		strings.Join([]string{url, url, url, "example.org", "placeholder", "mine\n"}, " "); got != want {
		t.Errorf("the proxy environment is %q, want %q", got, want)
	}
	w.turn(wire.Egress{})
	if a, _ := run1(t, w.s, sh("env | grep -i -e proxy -e TOKEN; true")); a.stdout.Len() > 0 {
		t.Errorf("the proxy environment while the proxy is off is %q, want none", a.stdout.String())
	}
}

func TestDialReachesLoopback(t *testing.T) {
	s := testServer(t, false)
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		port := ln.Addr().(*net.TCPAddr).Port
		k := dial(t, s, wire.OpDial, wire.Dial{Port: port})
		k.untilStarted()
		nc, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		same(t, k.nc.(*net.UnixConn), nc.(*net.TCPConn))
		nc.Close()
	}
	for port, code := range map[int]wire.Code{0: wire.InvalidArgument, 65536: wire.InvalidArgument, 1: wire.NotFound} {
		if a := dial(t, s, wire.OpDial, wire.Dial{Port: port}).all(); a.failure == nil || a.failure.Code != code ||
			a.failure.Field != "port" {
			t.Errorf("dial of port %d: %s, want %s of field port", port, describe(a.failure), code)
		}
	}
	eventually(t, "all connections are forgotten", func() bool { return len(s.dials.slots) == 0 })
}
