package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"time"
)

// serveCrowd serves with room for so many connections.
func serveCrowd(t *testing.T, most int) (address string) {
	t.Helper()
	s := New(Options{})
	s.crowd.most = most
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, patience) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		for began := time.Now(); s.crowd.size() > 0; time.Sleep(time.Millisecond) {
			if time.Since(began) > patience {
				t.Fatalf("%d connections are counted after the end", s.crowd.size())
			}
		}
	})
	return l.Addr().String()
}

func (c *crowd) size() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

// hello asks for something over a connection of its own, which stays open.
func hello(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprint(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatalf("not answered: %v", err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusOK {
		t.Fatalf("answered %d", res.StatusCode)
	}
	return conn
}

// However many connections nobody asks anything on, who asks is answered, and
// no more than there is room for stay open.
func TestConnectionsThatWaitAreBounded(t *testing.T) {
	t.Parallel()
	const most, all = 8, 40
	address := serveCrowd(t, most)
	var closed atomic.Int32
	for range all {
		conn := hello(t, address)
		go func() { // ends with the connection
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, net.ErrClosed) {
				closed.Add(1)
			}
		}()
	}
	for began := time.Now(); closed.Load() < all-most; time.Sleep(5 * time.Millisecond) {
		if time.Since(began) > idleTime/4 {
			t.Fatalf("%d of %d connections were closed, for %d there is room", closed.Load(), all, most)
		}
	}
	hello(t, address)
}
