package guestconn

import (
	"context"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

func TestMuxCountsConnectionsSeparately(t *testing.T) {
	t.Parallel()
	b := bridge(t, echo)
	carry := func(ctx context.Context) (net.Conn, error) {
		c, err := b.mux.Open(soon(t))
		must(t, err)
		t.Cleanup(func() { c.Close() })
		return c, c.(*muxed).Carry(ctx)
	}
	var first net.Conn
	for range MaxCarried {
		c, err := carry(soon(t))
		must(t, err)
		if first == nil {
			first = c
		}
	}
	over, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if c, err := carry(over); err == nil {
		t.Error("Carry over the limit succeeded, want an error")
	} else {
		must(t, c.Close()) // it still counts as a request
	}
	manyRoundTrips(t, b.mux, 20, 1<<10)
	time.AfterFunc(10*time.Millisecond, func() { _ = first.Close() })
	c, err := carry(soon(t)) // waits for a free place
	must(t, err)
	must(t, exchange(c, 1))
	if n := len(b.mux.slots); n != 0 {
		t.Errorf("%d connections count as requests, want 0", n)
	}
}

func TestMuxReportsGuestEOF(t *testing.T) {
	t.Parallel()
	got := make(chan string, 1)
	b := bridge(t, func(c net.Conn) {
		_, _ = c.Write([]byte("bye"))
		_ = c.(*net.UnixConn).CloseWrite()
		all, _ := io.ReadAll(c)
		got <- string(all)
	})
	c, err := b.mux.Open(soon(t))
	must(t, err)
	all, err := io.ReadAll(c)
	must(t, err)
	_, err = c.Write([]byte("and you"))
	must(t, err)
	must(t, c.Close())
	if said := <-got; string(all) != "bye" || said != "and you" {
		t.Errorf(`the host read %q and the guest %q, want "bye" and "and you"`, all, said)
	}
}

func TestParkKeepsKeptStreams(t *testing.T) {
	t.Parallel()
	path := socketPath(t)
	l := listen(t, path)
	l.Expect(os.Getpid())
	kept := make(chan net.Conn, 1)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- Park(ctx, path, 4, func(c net.Conn) bool { kept <- c; return true }, func() {}) }()
	var last net.Conn
	for range MaxServed + 10 { // none of them counts
		c, err := l.Open(soon(t))
		must(t, err)
		defer c.Close()
		k := <-kept
		defer k.Close()
		go echo(k)
		last = c
	}
	cancel()
	<-over
	must(t, exchange(last, 100))
}
