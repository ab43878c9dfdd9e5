package netpolicy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"
)

// TestManyTunnelsCostLittle opens five hundred tunnels that carry something and then idle.
func TestManyTunnelsCostLittle(t *testing.T) {
	const many = 500
	port := echo(t)
	// The machine may be slow, and this test is not about the time of a connect.
	w := newWorld(t, Options{Limits: Limits{HeaderTime: 6 * soon, DialTime: 6 * soon}}, SessionOptions{},
		Rule{Host: "a.test", Ports: []int{port}, Protocol: TCP})
	before, routines := heap()
	conns := make([]net.Conn, many)
	var all sync.WaitGroup
	turn := make(chan struct{}, 50) // fewer than the echo's backlog, whose overflow costs seconds
	for i := range conns {
		turn <- struct{}{}
		all.Go(func() {
			defer func() { <-turn }()
			nc, err := w.connect(target("a.test", port))
			if err != nil {
				t.Error(err)
				return
			}
			go nc.Write(make([]byte, 100_000))
			if _, err := io.ReadFull(nc, make([]byte, 100_000)); err != nil {
				t.Error(err)
			}
			conns[i] = nc
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	during, each := heap()
	t.Logf("%d tunnels: %d KiB and %.1f goroutines each, the test's own among them", many, (during-before)/many>>10,
		float64(each-routines)/many)
	if limit := int64(many * 128 << 10); during-before > limit {
		t.Errorf("%d tunnels take %d MiB, want at most %d", many, (during-before)>>20, limit>>20)
	}
	begun := time.Now()
	w.s.Set(nil, nil)
	for i := range many {
		w.audited(i + 1)
	}
	t.Logf("all ended after %s", time.Since(begun))
	for _, nc := range conns {
		nc.Close()
	}
	after := waitForGoroutines(t, routines+10)
	t.Logf("after it %d KiB more", (after-before)>>10)
}

// heap returns the memory in use, in bytes, and the number of goroutines.
func heap() (int64, int) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse), runtime.NumGoroutine()
}

// waitForGoroutines waits until at most limit goroutines run, and returns the memory in use then.
func waitForGoroutines(t *testing.T, limit int) int64 {
	t.Helper()
	end := time.Now().Add(soon)
	for {
		after, left := heap()
		if left <= limit {
			return after
		}
		if time.Now().After(end) {
			t.Fatalf("%d goroutines after the tunnels ended, want at most %d", left, limit)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// everywhere is a resolver that returns 127.0.0.1 for all names.
type everywhere struct{}

func (everywhere) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return loopback, nil
}

// TestConnectionsToServersAreBounded checks that the connections to servers do not exceed those
// from the sandbox plus the idle ones, for clients that leave early and for many names.
func TestConnectionsToServersAreBounded(t *testing.T) {
	srv, roots := secureServer(t, http.NotFoundHandler())
	stalled, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer stalled.Close()
	w := newWorld(t, Options{Resolver: everywhere{}, Roots: roots, Limits: Limits{DialTime: time.Minute}},
		SessionOptions{},
		Rule{Host: "*.test", Protocol: HTTPS, Ports: []int{portOf(t, srv)}},
		Rule{Host: "stalled.test", Protocol: HTTPS, Ports: []int{stalled.Addr().(*net.TCPAddr).Port}})
	nc := w.dial()
	io.WriteString(nc, "GET http://stalled.test/ HTTP/1.1\r\nHost: stalled.test\r\n\r\n")
	outside, err := stalled.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer outside.Close()
	outside.SetDeadline(time.Now().Add(soon))
	if _, err := outside.Read(make([]byte, 1)); err != nil { // of the handshake
		t.Fatal(err)
	}
	nc.Close()
	if _, err := io.Copy(io.Discard, outside); err != nil {
		t.Errorf("read of the handshake after its client left = %v, want its end", err)
	}
	c := w.client()
	for i := range 2 * keptServers {
		resp, err := c.Get(fmt.Sprintf("http://n%d.test/", i))
		if err != nil || resp.StatusCode != http.StatusNotFound || resp.Body.Close() != nil {
			t.Fatalf("GET of server %d = %v, %v; want status 404", i, resp, err)
		}
	}
	if n := w.s.outside.Load(); n > keptServers+2 {
		t.Errorf("%d connections to servers, want at most %d", n, keptServers+2)
	}
}
