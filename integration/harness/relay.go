package harness

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// Relay forwards connections to the engine and can be cut, so that one test can have a dead engine
// while all others have a live one.
type Relay struct {
	t      testing.TB
	engine string
	path   string

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	work     sync.WaitGroup
}

// NewRelay returns an open relay, which is closed at the end of the test.
func NewRelay(tb testing.TB) *Relay {
	tb.Helper()
	engine, ok := strings.CutPrefix(Need(tb, EnvDocker), "unix://")
	if !ok {
		tb.Fatalf("%s is not a unix socket", EnvDocker)
	}
	r := &Relay{t: tb, engine: engine, path: filepath.Join(TempDir(tb), "engine.sock"), conns: map[net.Conn]bool{}}
	r.Open()
	tb.Cleanup(r.Cut)
	return r
}

// Host returns the relay's address for the docker runtime.
func (r *Relay) Host() string { return "unix://" + r.path }

// Open accepts connections.
func (r *Relay) Open() {
	r.t.Helper()
	l, err := net.Listen("unix", r.path)
	if err != nil {
		r.t.Fatal(err)
	}
	r.mu.Lock()
	r.listener = l
	r.mu.Unlock()
	r.work.Go(func() { // Cut waits for it
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.work.Go(func() { r.carry(c) })
		}
	})
}

// Cut ends every connection and refuses new ones until Open.
func (r *Relay) Cut() {
	r.mu.Lock()
	if r.listener != nil {
		r.listener.Close()
		r.listener = nil
	}
	for c := range r.conns {
		c.Close()
	}
	r.mu.Unlock()
	r.work.Wait()
	if err := os.Remove(r.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Error(err)
	}
}

// carry forwards one connection until it ends.
func (r *Relay) carry(down net.Conn) {
	defer down.Close()
	up, err := net.Dial("unix", r.engine)
	if err != nil {
		return
	}
	defer up.Close()
	if !r.keep(down, up) {
		return
	}
	defer r.drop(down, up)
	var both sync.WaitGroup
	both.Go(func() { pour(up, down) })
	both.Go(func() { pour(down, up) })
	both.Wait()
}

// pour copies one direction until its end and forwards the end.
func pour(to, from net.Conn) {
	_, _ = io.Copy(to, from)
	if u, ok := to.(*net.UnixConn); ok {
		_ = u.CloseWrite()
	}
}

// keep registers connections for Cut, and reports whether the relay is open.
func (r *Relay) keep(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		r.conns[c] = true
	}
	return r.listener != nil
}

// drop removes connections that have ended.
func (r *Relay) drop(conns ...net.Conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range conns {
		delete(r.conns, c)
	}
}
