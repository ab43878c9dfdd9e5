package netpolicy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"
)

// timed runs a function repeatedly and reports the median time.
func timed(b *testing.B, one func()) {
	b.Helper()
	var all []time.Duration
	for b.Loop() {
		begun := time.Now()
		one()
		all = append(all, time.Since(begun))
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Nanoseconds())/1e3, "p50-µs")
}

// BenchmarkLatency compares direct connections with those through the gateway: one request on an
// open connection, and one new tunnel.
func BenchmarkLatency(b *testing.B) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }))
	defer s.Close()
	port, tcp := portOf(b, s), echo(b)
	w := newWorld(b, Options{}, SessionOptions{}, Rule{Host: "a.test", Protocol: HTTP, Ports: []int{port}},
		Rule{Host: "a.test", Protocol: TCP, Ports: []int{tcp}})
	get := func(c *http.Client, url string) {
		resp, err := c.Get(url)
		if err != nil {
			b.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	round := func(nc net.Conn, err error) {
		if err != nil {
			b.Fatal(err)
		}
		io.WriteString(nc, "x")
		if _, err := io.ReadFull(nc, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
		nc.Close()
	}
	b.Run("request/direct", func(b *testing.B) {
		timed(b, func() { get(s.Client(), s.URL) })
	})
	b.Run("request/gateway", func(b *testing.B) {
		c := w.client()
		timed(b, func() { get(c, fmt.Sprintf("http://a.test:%d/", port)) })
	})
	b.Run("tunnel/direct", func(b *testing.B) {
		timed(b, func() { round(net.Dial("tcp", target("127.0.0.1", tcp))) })
	})
	b.Run("tunnel/gateway", func(b *testing.B) {
		timed(b, func() { round(w.connect(target("a.test", tcp))) })
	})
}

// sendToAll sends each connection of a listener the given number of bytes and closes it. It returns
// when the listener is closed; the senders count in all.
func sendToAll(l net.Listener, all *sync.WaitGroup, each int) {
	piece := make([]byte, 256<<10)
	for {
		nc, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			defer nc.Close()
			for range each / len(piece) {
				if _, err := nc.Write(piece); err != nil {
					return
				}
			}
		})
	}
}

// BenchmarkThroughput sends bytes from a server to a client, through a tunnel and through io.Copy
// between the same kinds of sockets.
func BenchmarkThroughput(b *testing.B) {
	const each = 64 << 20
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	var all sync.WaitGroup
	defer all.Wait()
	defer l.Close() // ends sendToAll
	all.Go(func() { sendToAll(l, &all, each) })
	port := l.Addr().(*net.TCPAddr).Port
	drain := func(b *testing.B, open func() net.Conn) {
		b.Helper()
		b.SetBytes(each)
		buf := make([]byte, 256<<10)
		for b.Loop() {
			nc := open()
			n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{nc}, buf)
			if n != each {
				b.Fatalf("copied %d bytes, %v; want %d", n, err, each)
			}
			nc.Close()
		}
	}
	b.Run("io.Copy", func(b *testing.B) {
		drain(b, func() net.Conn {
			ours, theirs := socketPair(b)
			out, err := net.Dial("tcp", l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			all.Go(func() {
				defer out.Close()
				defer theirs.Close()
				_, _ = io.Copy(theirs, out)
			})
			return ours
		})
	})
	b.Run("tunnel", func(b *testing.B) {
		w := newWorld(b, Options{}, SessionOptions{}, Rule{Host: "a.test", Protocol: TCP, Ports: []int{port}})
		drain(b, func() net.Conn {
			nc, err := w.connect(target("a.test", port))
			if err != nil {
				b.Fatal(err)
			}
			return nc
		})
	})
}
