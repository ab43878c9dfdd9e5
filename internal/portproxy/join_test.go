package portproxy

import (
	"bytes"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// halved is a client connection that can be half-closed.
type halved struct {
	net.Conn
	said io.Reader
	over chan struct{}
}

func (h *halved) Read(p []byte) (int, error) { return h.said.Read(p) }
func (h *halved) CloseWrite() error          { close(h.over); return nil }

// The output of a server that cannot be half-closed is copied until it ends or pauses.
func TestJoinCopiesOutputAfterClientEnd(t *testing.T) {
	for name, ends := range map[string]bool{"it ends": true, "it falls silent": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, inside := net.Pipe()
				theirs, outside := net.Pipe()
				client := &halved{Conn: outside, said: bytes.NewReader([]byte("asked")), over: make(chan struct{})}
				go func() {
					defer func() {
						if ends {
							server.Close()
						}
					}()
					got := make([]byte, 10)
					if _, err := io.ReadFull(server, got); err != nil || string(got) != "earlyasked" {
						t.Errorf("the server got %q, %v", got, err)
					}
					for range 5 {
						time.Sleep(quietTime * 9 / 10)
						if _, err := io.WriteString(server, "said."); err != nil {
							t.Error(err)
						}
					}
				}()
				heard := make(chan string, 1)
				go func() { all, _ := io.ReadAll(theirs); heard <- string(all) }()
				began := time.Now()
				Join(client, inside, []byte("early"))
				if got := <-heard; got != "said.said.said.said.said." {
					t.Errorf("the client heard %q", got)
				}
				took, least := time.Since(began), 5*quietTime*9/10
				if !ends {
					least += quietTime
				}
				if took != least {
					t.Errorf("it took %s, want %s", took, least)
				}
				server.Close()
			})
		})
	}
}
