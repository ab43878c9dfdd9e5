package client

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// peer is the server's side of one connection.
type peer struct {
	t     *testing.T
	conn  *websocket.Conn
	query string
}

func (p *peer) say(m v1.TerminalMessage) {
	p.t.Helper()
	b, err := json.Marshal(m)
	if err == nil {
		err = p.conn.Write(p.t.Context(), websocket.MessageText, b)
	}
	if err != nil {
		p.t.Error(err)
	}
}

func (p *peer) show(text string) {
	p.t.Helper()
	if err := p.conn.Write(p.t.Context(), websocket.MessageBinary, []byte(text)); err != nil {
		p.t.Error(err)
	}
}

// hear reads binary messages until n bytes are there.
func (p *peer) hear(n int) string {
	p.t.Helper()
	var b bytes.Buffer
	for b.Len() < n {
		kind, m, err := p.conn.Read(p.t.Context())
		if err != nil {
			p.t.Errorf("Read after %d bytes = %v, want %d bytes", b.Len(), err, n)
			return ""
		}
		if kind == websocket.MessageBinary {
			b.Write(m)
		}
	}
	return b.String()
}

// terminals serves one connection after the other by the functions; what comes
// after them is refused.
func terminals(t *testing.T, serves ...func(p *peer)) *Client {
	t.Helper()
	var mu sync.Mutex
	n := 0
	return serve(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		i := n
		n++
		mu.Unlock()
		if i >= len(serves) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"status":404,"code":"not_found","detail":"no more"}`)
			return
		}
		conn, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{v1.TerminalProtocol}})
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.CloseNow()
		conn.SetReadLimit(v1.TerminalInput)
		serves[i](&peer{t, conn, r.URL.RawQuery})
	})
}

func openTerminal(t *testing.T, c *Client, o TerminalOptions) *Terminal {
	t.Helper()
	term, err := c.OpenTerminal(t.Context(), "box", v1.TerminalRequest{}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { term.Close() })
	return term
}

func readAll(t *testing.T, term *Terminal) (string, error) {
	t.Helper()
	b, err := io.ReadAll(term)
	return string(b), err
}

var exit3 = v1.TerminalMessage{Type: "exit", Result: &v1.ExecResult{Ending: "exited", ExitCode: 3}}

func TestTerminalReadsAllOutput(t *testing.T) {
	c := terminals(t, func(p *peer) {
		p.say(v1.TerminalMessage{Type: "started", Shell: "s1"})
		p.show("hello ")
		p.show("\xff\x00")
		p.say(exit3)
		p.conn.Close(websocket.StatusNormalClosure, "")
	})
	term := openTerminal(t, c, TerminalOptions{})
	text, err := readAll(t, term)
	r, wErr := term.Wait()
	if text != "hello \xff\x00" || err != nil || wErr != nil || r.ExitCode != 3 || term.Shell() != "s1" ||
		term.Offset() != 8 {
		t.Errorf("output = %q, %v; Wait = %+v, %v; shell %s at %d; want all 8 bytes, exit code 3, s1", text, err, r, wErr,
			term.Shell(), term.Offset())
	}
	if _, err := term.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Write after the end = %v, want io.ErrClosedPipe", err)
	}
}

// Output continues at its offset after any end of the connection. Input that was not taken is sent
// again only if the server reported the exact count.
func TestTerminalResumesAfterCut(t *testing.T) {
	for name, c := range map[string]struct {
		leave func(p *peer)
		again string
	}{
		"a restart in good order": {func(p *peer) {
			p.say(v1.TerminalMessage{Type: "taken", Bytes: 2, Settled: true})
			p.conn.Close(websocket.StatusServiceRestart, "")
		}, "cd"},
		"a restart that could not tell": {func(p *peer) {
			p.say(v1.TerminalMessage{Type: "taken", Bytes: 2})
			p.conn.Close(websocket.StatusServiceRestart, "")
		}, ""},
		"a cut": {func(p *peer) { p.conn.CloseNow() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var away, back int
			cl := terminals(t, func(p *peer) {
				p.say(v1.TerminalMessage{Type: "started", Shell: "s1", Offset: 100})
				p.show("one ")
				if got := p.hear(4); got != "abcd" {
					p.t.Errorf("typed %q, want \"abcd\"", got)
				}
				c.leave(p)
			}, func(p *peer) {
				if want := "offset=104&shell=s1"; p.query != want {
					p.t.Errorf("query of the second connection = %q, want %q", p.query, want)
				}
				p.say(v1.TerminalMessage{Type: "started", Shell: "s1", Offset: 104})
				if got := p.hear(len(c.again) + 3); got != c.again+"new" {
					p.t.Errorf("typed %q, want %q", got, c.again+"new")
				}
				p.say(v1.TerminalMessage{Type: "gap", From: 104, To: 200})
				p.show("two")
				p.say(exit3)
			})
			var gaps []int64
			back2 := make(chan struct{})
			term := openTerminal(t, cl, TerminalOptions{
				Away: func(error) { away++ }, Back: func() { back++; close(back2) },
				Gap: func(from, to int64) { gaps = append(gaps, from, to) },
			})
			if _, err := term.Write([]byte("abcd")); err != nil {
				t.Fatal(err)
			}
			first := make([]byte, 4)
			if _, err := io.ReadFull(term, first); err != nil || string(first) != "one " {
				t.Fatalf("first output = %q, %v; want \"one \"", first, err)
			}
			<-back2
			if _, err := term.Write([]byte("new")); err != nil {
				t.Fatal(err)
			}
			text, err := readAll(t, term)
			if text != "two" || err != nil || away != 1 || back != 1 || len(gaps) != 2 || gaps[1] != 200 ||
				term.Offset() != 203 {
				t.Errorf("output = %q, %v; away %d, back %d, gaps %v, at %d; want two, 1, 1, one gap to 200, 203", text, err,
					away, back, gaps, term.Offset())
			}
		})
	}
}

func TestTerminalWriteWaitsForWindow(t *testing.T) {
	go1 := make(chan struct{})
	c := terminals(t, func(p *peer) {
		p.say(v1.TerminalMessage{Type: "started", Shell: "s1"})
		p.hear(v1.TerminalWindow)
		<-go1
		p.say(v1.TerminalMessage{Type: "taken", Bytes: v1.TerminalWindow})
		p.hear(10)
		p.say(exit3)
	})
	term := openTerminal(t, c, TerminalOptions{})
	wrote := make(chan error, 1)
	go func() {
		_, err := term.Write(make([]byte, v1.TerminalWindow+10))
		wrote <- err
	}()
	select {
	case err := <-wrote:
		t.Fatalf("Write beyond the window returned %v, want it to wait", err)
	case <-time.After(100 * time.Millisecond):
	}
	close(go1)
	if err := <-wrote; err != nil {
		t.Error(err)
	}
	if _, err := readAll(t, term); err != nil {
		t.Error(err)
	}
}

func TestRefusalEndsTerminal(t *testing.T) {
	problem := &v1.Problem{Status: 409, Code: "failed_precondition", Detail: "the sandbox has ended"}
	c := terminals(t, func(p *peer) {
		p.say(v1.TerminalMessage{Type: "started", Shell: "s1"})
		p.say(v1.TerminalMessage{Type: "error", Problem: problem})
		p.conn.Close(websocket.StatusPolicyViolation, "")
	}, func(p *peer) {
		p.say(v1.TerminalMessage{Type: "started", Shell: "s1"})
		p.conn.CloseNow()
	})
	term := openTerminal(t, c, TerminalOptions{})
	if _, err := readAll(t, term); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Read after an error message = %v, want FailedPrecondition", err)
	}
	if _, err := term.Wait(); err == nil || !strings.Contains(err.Error(), problem.Detail) {
		t.Errorf("Wait after an error message = %v, want %q", err, problem.Detail)
	}
	term = openTerminal(t, c, TerminalOptions{})
	if _, err := readAll(t, term); !errdefs.IsNotFound(err) {
		t.Errorf("Read after a refused reconnect = %v, want NotFound", err)
	}
	if _, err := c.OpenTerminal(t.Context(), "box", v1.TerminalRequest{}, TerminalOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("OpenTerminal = %v, want NotFound", err)
	}
}

func TestHostileTerminals(t *testing.T) {
	for name, first := range map[string]func(p *peer){
		"no start":        func(p *peer) { p.show("hello") },
		"no JSON":         func(p *peer) { p.conn.Write(p.t.Context(), websocket.MessageText, []byte("hello")) },
		"another start":   func(p *peer) { p.say(exit3) },
		"no shell":        func(p *peer) { p.say(v1.TerminalMessage{Type: "started"}) },
		"a huge message":  func(p *peer) { p.conn.Write(p.t.Context(), websocket.MessageText, make([]byte, maxTerminalMessage+2)) },
		"gone at once":    func(p *peer) { p.conn.CloseNow() },
		"error, no words": func(p *peer) { p.say(v1.TerminalMessage{Type: "error"}) },
	} {
		c := terminals(t, first)
		if term, err := c.OpenTerminal(t.Context(), "box", v1.TerminalRequest{}, TerminalOptions{}); err == nil {
			term.Close()
			t.Errorf("%s: OpenTerminal succeeded, want an error", name)
		}
	}
}

func TestTerminalCloseDetaches(t *testing.T) {
	closed := make(chan websocket.StatusCode, 1)
	c := terminals(t, func(p *peer) {
		p.say(v1.TerminalMessage{Type: "started", Shell: "s1"})
		p.show("nobody reads this")
		for {
			if _, _, err := p.conn.Read(p.t.Context()); err != nil {
				closed <- websocket.CloseStatus(err)
				return
			}
		}
	})
	term := openTerminal(t, c, TerminalOptions{})
	term.Close()
	term.Close()
	if _, err := term.Wait(); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("Wait after Close = %v, want io.ErrClosedPipe", err)
	}
	if code := <-closed; code != websocket.StatusNormalClosure {
		t.Errorf("closed with %v, want %v", code, websocket.StatusNormalClosure)
	}
}
