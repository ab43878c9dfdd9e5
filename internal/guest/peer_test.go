package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// peer is a scripted guest. It answers pings unless deaf is set.
type peer struct {
	t      testing.TB
	script func(c *wire.Conn, nc net.Conn, req wire.Request)
	deaf   bool
	pipe   bool // streams without half-close, like multiplexed ones
	wg     sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn
	pings int
}

// talk returns a client of a peer. Times are short where tests wait for them.
func talk(tb testing.TB, p *peer) *Client {
	tb.Helper()
	p.t = tb
	tb.Cleanup(func() {
		p.mu.Lock()
		for _, c := range p.conns {
			_ = c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	c := New(p)
	c.times = times{
		open: 30 * time.Second, quiet: 100 * time.Millisecond, patience: 300 * time.Millisecond, short: 30 * time.Second,
		ping: 30 * time.Second, cancel: 30 * time.Second,
	}
	return c
}

// Open implements Opener.
func (p *peer) Open(context.Context) (net.Conn, error) {
	host, guest := net.Pipe()
	if !p.pipe {
		host, guest = socketPair(p.t)
	}
	p.mu.Lock()
	p.conns = append(p.conns, guest)
	p.mu.Unlock()
	p.wg.Go(func() {
		defer guest.Close()
		c := wire.NewConn(guest)
		req, err := c.ReadRequest(wire.HeaderTime)
		if err != nil {
			return
		}
		if req.Op != wire.OpPing {
			p.script(c, guest, req)
			return
		}
		p.mu.Lock()
		p.pings++
		p.mu.Unlock()
		if p.deaf {
			_, _, _ = c.ReadFrame()
			return
		}
		_ = c.Reply(wire.Pong{Version: wire.Version})
	})
	return host, nil
}

func socketPair(tb testing.TB) (net.Conn, net.Conn) {
	tb.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(tb, err)
	var ends [2]net.Conn
	for i, n := range fds {
		f := os.NewFile(uintptr(n), "pair")
		ends[i], err = net.FileConn(f)
		must(tb, err)
		must(tb, f.Close())
	}
	return ends[0], ends[1]
}

// pinged waits until the guest received n pings.
func (p *peer) pinged(n int) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		p.mu.Lock()
		enough := p.pings >= n
		p.mu.Unlock()
		if enough {
			return
		}
	}
}

// frame returns an encoded frame, which may be invalid.
func frame(kind wire.Kind, payload string) []byte {
	n := len(payload)
	return append([]byte{byte(kind), byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, payload...)
}

func jsonFrame(kind wire.Kind, v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return frame(kind, string(b))
}

// say returns a script that sends frames and hangs up.
func say(frames ...[]byte) func(*wire.Conn, net.Conn, wire.Request) {
	return func(_ *wire.Conn, nc net.Conn, _ wire.Request) { _, _ = nc.Write(bytes.Join(frames, nil)) }
}

// hold returns a script that sends frames and waits until the host hangs up.
func hold(frames ...[]byte) func(*wire.Conn, net.Conn, wire.Request) {
	return func(c *wire.Conn, nc net.Conn, _ wire.Request) {
		_, _ = nc.Write(bytes.Join(frames, nil))
		drain(c)
	}
}

// drain reads until the host hangs up.
func drain(c *wire.Conn) {
	for {
		if _, _, err := c.ReadFrame(); err != nil {
			return
		}
	}
}

// soon returns a context that limits the duration of a test.
func soon(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	tb.Cleanup(cancel)
	return ctx
}
