package portproxy

import (
	"bytes"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// halved is a connection that can be half-closed. It reads from said.
type halved struct {
	net.Conn
	said io.Reader
	over chan struct{}
}

func (h *halved) Read(p []byte) (int, error) { return h.said.Read(p) }
func (h *halved) CloseWrite() error          { close(h.over); return nil }

// The output of a server is copied until it ends, however long it pauses after the client's end.
func TestJoinCopiesOutputAfterClientEnd(t *testing.T) {
	const pause = 10 * time.Minute
	synctest.Test(t, func(t *testing.T) {
		server, near := net.Pipe()
		theirs, outside := net.Pipe()
		client := &halved{Conn: outside, said: bytes.NewReader([]byte("asked")), over: make(chan struct{})}
		inside := &halved{Conn: near, said: near, over: make(chan struct{})}
		go func() {
			defer server.Close()
			got := make([]byte, 10)
			if _, err := io.ReadFull(server, got); err != nil || string(got) != "earlyasked" {
				t.Errorf("the server got %q, %v; want earlyasked", got, err)
			}
			<-inside.over
			for range 5 {
				time.Sleep(pause)
				if _, err := io.WriteString(server, "said."); err != nil {
					t.Error(err)
				}
			}
		}()
		heard := make(chan string, 1)
		go func() { all, _ := io.ReadAll(theirs); heard <- string(all) }()
		began := time.Now()
		go func() { <-client.over; outside.Close() }() // as a client that has heard everything
		Join(client, inside, []byte("early"))
		if got, want := <-heard, strings.Repeat("said.", 5); got != want {
			t.Errorf("the client got %q, want %q", got, want)
		}
		if took := time.Since(began); took != 5*pause {
			t.Errorf("Join took %s, want %s", took, 5*pause)
		}
	})
}

// A connection without half-close ends with the first direction.
func TestJoinWithoutHalfCloseEndsBoth(t *testing.T) {
	server, inside := net.Pipe()
	outside, client := net.Pipe()
	server.Close()
	Join(outside, inside, nil)
	if _, err := client.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("read of the client: %v, want %v", err, io.EOF)
	}
}
