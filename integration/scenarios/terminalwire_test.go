//go:build integration

package scenarios

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/integration/harness"
)

// dialPTY connects as a foreign client does.
func dialPTY(t *testing.T, s *harness.Server, path string, header http.Header) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", s.Socket())
	}}
	conn, resp, err := websocket.Dial(within(t), "http://orchestrator"+path, &websocket.DialOptions{
		HTTPClient: &http.Client{Transport: transport}, HTTPHeader: header, Host: header.Get("Host"), Subprotocols: []string{v1.TerminalProtocol},
	})
	if err == nil {
		t.Cleanup(func() { conn.CloseNow() })
	}
	return conn, resp, err
}

func ptyPath(id, query string) string { return "/v1/sandboxes/" + id + "/pty?" + query }

// opened is a connection whose first message has come.
func opened(t *testing.T, s *harness.Server, id, query string) (*websocket.Conn, v1.TerminalMessage) {
	t.Helper()
	conn, _, err := dialPTY(t, s, ptyPath(id, query), nil)
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	kind, b, err := conn.Read(within(t))
	var m v1.TerminalMessage
	if err != nil || kind != websocket.MessageText || json.Unmarshal(b, &m) != nil || m.Type != "started" || m.Shell == "" {
		t.Fatalf("it begins with %v %q, %v", kind, b, err)
	}
	return conn, m
}

// closing reads to the end and returns how the server closed, with its last
// text message.
func closing(t *testing.T, conn *websocket.Conn) (websocket.StatusCode, v1.TerminalMessage) {
	t.Helper()
	var last v1.TerminalMessage
	for {
		kind, b, err := conn.Read(within(t))
		if err != nil {
			return websocket.CloseStatus(err), last
		}
		if kind == websocket.MessageText {
			last = v1.TerminalMessage{}
			if err := json.Unmarshal(b, &last); err != nil {
				t.Fatalf("%q: %v", b, err)
			}
		}
	}
}

// closeCode is how the server closes a connection to a terminal.
func closeCode(t *testing.T, s *harness.Server, id, shell string) <-chan websocket.StatusCode {
	t.Helper()
	conn, _ := opened(t, s, id, "shell="+shell)
	code := make(chan websocket.StatusCode, 1)
	go func() { // ends with the connection
		for {
			if _, _, err := conn.Read(context.Background()); err != nil {
				code <- websocket.CloseStatus(err)
				return
			}
		}
	}()
	return code
}

func refusedTerminals(t *testing.T, s *harness.Server, id string) {
	ctx := within(t)
	token := func(r v1.TokenRequest) string {
		got, err := s.Client.CreateToken(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Client.RevokeToken(context.Background(), got.ID) }) //nolint:errcheck // the server ends
		return "Bearer " + got.Secret
	}
	other := token(v1.TokenRequest{Caller: "other", Profile: "default", Trust: 3})
	low := token(v1.TokenRequest{Caller: "low", Profile: "readonly"})
	for name, c := range map[string]struct {
		header http.Header
		status int
	}{
		"another origin":            {http.Header{"Origin": {"http://evil.example"}}, 403},
		"no origin to speak of":     {http.Header{"Origin": {"null"}}, 403},
		"a page that leads here":    {http.Header{"Origin": {"http://evil.example"}, "Host": {"evil.example"}}, 403},
		"a cross-site page":         {http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		"a token that is not known": {http.Header{"Authorization": {"Bearer orc_0123456789abcdef_" + strings.Repeat("A", 43)}}, 401},
		"another caller":            {http.Header{"Authorization": {other}}, 404},
		"a caller with little":      {http.Header{"Authorization": {low}}, 403},
		"its own origin":            {http.Header{"Origin": {"http://localhost"}, "Host": {"localhost"}}, 101},
	} {
		conn, resp, err := dialPTY(t, s, ptyPath(id, "argv="+`%5B%22true%22%5D`), c.header)
		if resp == nil || resp.StatusCode != c.status || (err == nil) != (c.status == 101) {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
		if err == nil {
			if code, last := closing(t, conn); code != 1000 || last.Type != "exit" {
				t.Errorf("%s: %v %+v", name, code, last)
			}
		}
	}
	for name, c := range map[string]struct {
		path, field string
		header      []string
	}{
		"no upgrade":      {ptyPath(id, ""), "Upgrade", nil},
		"no key":          {ptyPath(id, ""), "Sec-WebSocket-Key", []string{"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Version", "13"}},
		"no subprotocol":  {ptyPath(id, ""), "Sec-WebSocket-Protocol", handshake[:8]},
		"odd parameter":   {ptyPath(id, "x=1"), "x", handshake},
		"bad argv":        {ptyPath(id, "argv=top"), "argv", handshake},
		"bad columns":     {ptyPath(id, "cols=-4"), "cols", handshake},
		"old and new":     {ptyPath(id, "shell=x&command=top"), "command", handshake},
		"only new":        {ptyPath(id, "offset=4"), "offset", handshake},
		"header and more": {ptyPath(id, "cols=4"), "Orchestrator-Exec", append([]string{"Orchestrator-Exec", "e30"}, handshake...)},
		"odd header":      {ptyPath(id, ""), "nope", append([]string{"Orchestrator-Exec", "eyJub3BlIjoxfQ"}, handshake...)},
	} {
		a := s.Ask(t, "GET", c.path, "", c.header...)
		if !bytes.Contains(a.Body, []byte(`"field":"`+c.field+`"`)) || a.Status != 400 {
			t.Errorf("%s: %d %s", name, a.Status, a.Body)
		}
	}
	harness.Eventually(t, harness.Short, "no shell runs", func() bool {
		list, err := s.Client.Shells(ctx, id)
		for _, sh := range list {
			if sh.Result == nil {
				return false
			}
			s.Client.KillShell(ctx, sh.ID, 0, true) //nolint:errcheck // asked again
		}
		return err == nil
	})
}

var handshake = []string{
	"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Version", "13", "Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==",
	"Sec-WebSocket-Protocol", v1.TerminalProtocol,
}

func hostileMessages(t *testing.T, s *harness.Server, id string) {
	keep := open(t, s, id, v1.TerminalRequest{Argv: []string{"sleep", "1000"}})
	text := func(m string) func(*websocket.Conn) error {
		return func(c *websocket.Conn) error { return c.Write(within(t), websocket.MessageText, []byte(m)) }
	}
	binary := func(n, times int) func(*websocket.Conn) error {
		return func(c *websocket.Conn) error {
			for range times {
				if err := c.Write(within(t), websocket.MessageBinary, make([]byte, n)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		query string
		send  func(*websocket.Conn) error
		code  websocket.StatusCode
		field string // of the problem; "": there need be none
	}{
		"a huge message":       {"", binary(v1.TerminalInput+2, 1), 1009, ""},
		"a huge control":       {"", text(`{"type":"resize","x":"` + strings.Repeat("x", v1.TerminalControl) + `"}`), 1009, "message"},
		"no JSON":              {"", text("garbage"), 1007, "message"},
		"another type":         {"", text(`{"type":"eat"}`), 1008, "type"},
		"a field of no type":   {"", text(`{"type":"resize","colour":1}`), 1007, "message"},
		"a bad size":           {"", text(`{"type":"resize","cols":0,"rows":5}`), 1008, "cols"},
		"a size that is huge":  {"", text(`{"type":"resize","cols":70000,"rows":5}`), 1008, "cols"},
		"a bad signal":         {"", text(`{"type":"signal","signal":99}`), 1008, "signal"},
		"typing without right": {"&read_only=true", binary(1, 1), 1008, "read_only"},
		"signal without right": {"&read_only=true", text(`{"type":"signal","signal":9}`), 1008, "read_only"},
		"more than the window": {"", binary(v1.TerminalInput, 64), 1008, "message"},
		"detach":               {"", text(`{"type":"detach"}`), 1000, ""},
	} {
		conn, m := opened(t, s, id, "shell="+keep.Shell()+c.query)
		if m.Shell != keep.Shell() {
			t.Errorf("%s: %+v", name, m)
		}
		// What is said at the end is read while more is sent: the server waits for a
		// client that only writes a few seconds, and then cuts it off.
		sent := make(chan error, 1)
		go func() { sent <- c.send(conn) }() // which fails when the server has closed by then
		code, last := closing(t, conn)
		<-sent
		if code != c.code || c.field != "" && (last.Type != "error" || last.Problem == nil || last.Problem.Field != c.field) {
			t.Errorf("%s: closed with %v, %+v %+v", name, code, last, last.Problem)
		}
	}
	if sh, err := s.Client.Shell(within(t), keep.Shell()); err != nil || sh.State != "running" {
		t.Errorf("afterwards the terminal is %+v, %v", sh, err)
	}
}

// What is no WebSocket after the handshake costs the connection and no more.
func garbageFrames(t *testing.T, s *harness.Server, id string) {
	keep := open(t, s, id, v1.TerminalRequest{Argv: []string{"cat"}})
	masked := func(head ...byte) []byte { return append(head, 0, 0, 0, 0) }
	for name, frame := range map[string][]byte{
		"noise":                bytes.Repeat([]byte{0xff, 0x00, 0x9c, 0x13}, 4096),
		"not masked":           {0x82, 0x01, 'x'},
		"reserved bits":        masked(0xf2, 0x80),
		"unknown opcode":       masked(0x8b, 0x80),
		"a length, and no end": masked(0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"negative length":      masked(0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"a ping that is long":  masked(0x89, 0xfe, 0x01, 0x00),
		"continues nothing":    masked(0x80, 0x80),
		"half a frame, no end": masked(0x82, 0xfe, 0x10, 0x00),
	} {
		nc, err := net.Dial("unix", s.Socket())
		if err != nil {
			t.Fatal(err)
		}
		nc.SetDeadline(time.Now().Add(harness.Short))
		fmt.Fprintf(nc, "GET %s HTTP/1.1\r\nHost: orchestrator\r\n", ptyPath(id, "shell="+keep.Shell()))
		for i := 0; i < len(handshake); i += 2 {
			fmt.Fprintf(nc, "%s: %s\r\n", handshake[i], handshake[i+1])
		}
		fmt.Fprint(nc, "\r\n")
		r := bufio.NewReader(nc)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 101 {
			t.Fatalf("%s: %v %v", name, resp, err)
		}
		nc.Write(frame) //nolint:errcheck // the server may be faster
		if strings.HasSuffix(name, "no end") {
			nc.Close() // nobody waits for the rest
			continue
		}
		if _, err := io.Copy(io.Discard, r); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: the connection is open still: %v", name, err)
		}
		nc.Close()
	}
	keep.types("still here\r")
	keep.sees("still here\r\nstill here\r\n")
}
