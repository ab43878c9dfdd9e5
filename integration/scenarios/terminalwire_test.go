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

// dialPTY opens a WebSocket as a client of another implementation would.
func dialPTY(
	t *testing.T, s *harness.Server, path string, header http.Header,
) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", s.Socket())
		}}
	conn, resp, err := websocket.Dial(within(t), "http://orchestrator"+path, &websocket.DialOptions{
		HTTPClient:   &http.Client{Transport: transport},
		HTTPHeader:   header,
		Host:         header.Get("Host"),
		Subprotocols: []string{v1.TerminalProtocol},
	})
	if err == nil {
		t.Cleanup(func() { conn.CloseNow() })
	}
	return conn, resp, err
}

// ptyPath returns the path of a sandbox's terminals with a query.
func ptyPath(id, query string) string { return "/v1/sandboxes/" + id + "/pty?" + query }

// openPTY returns a connection to a terminal and its first message.
func openPTY(t *testing.T, s *harness.Server, id, query string) (*websocket.Conn, v1.TerminalMessage) {
	t.Helper()
	conn, _, err := dialPTY(t, s, ptyPath(id, query), nil) // websocket.Dial needs no Close
	if err != nil {
		t.Fatal(err)
	}
	conn.SetReadLimit(1 << 20)
	kind, b, err := conn.Read(within(t))
	var m v1.TerminalMessage
	started := err == nil && kind == websocket.MessageText && json.Unmarshal(b, &m) == nil
	if !started || m.Type != "started" || m.Shell == "" {
		t.Fatalf("first message: type %v, %q, %v; want started with a shell", kind, b, err)
	}
	return conn, m
}

// readToClose reads to the end and returns the code with which the server closed the connection,
// and its last text message.
func readToClose(t *testing.T, conn *websocket.Conn) (websocket.StatusCode, v1.TerminalMessage) {
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
				t.Fatalf("message %q: %v, want JSON", b, err)
			}
		}
	}
}

// closeCode attaches to a terminal and returns a channel that receives the code with which the
// server closes the connection.
func closeCode(t *testing.T, s *harness.Server, id, shell string) <-chan websocket.StatusCode {
	t.Helper()
	conn, _ := openPTY(t, s, id, "shell="+shell)
	code := make(chan websocket.StatusCode, 1)
	go func() { // returns when the connection ends
		for {
			if _, _, err := conn.Read(context.Background()); err != nil {
				code <- websocket.CloseStatus(err)
				return
			}
		}
	}()
	return code
}

// testRefusedTerminals checks which clients may open terminals, and the errors of invalid
// handshakes.
func testRefusedTerminals(t *testing.T, s *harness.Server, id string) {
	other := revokedLater(t, s, v1.TokenRequest{Caller: "other", Profile: "default", Trust: 3})
	low := revokedLater(t, s, v1.TokenRequest{Caller: "low", Profile: "readonly"})
	unknown := "Bearer orc_0123456789abcdef_" + strings.Repeat("A", 43)
	for name, c := range map[string]struct {
		header http.Header
		status int
	}{
		"another origin":              {http.Header{"Origin": {"http://evil.example"}}, 403},
		"opaque origin":               {http.Header{"Origin": {"null"}}, 403},
		"unknown host and its origin": {http.Header{"Origin": {"http://evil.example"}, "Host": {"evil.example"}}, 403},
		"cross-site page":             {http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		"unknown token":               {http.Header{"Authorization": {unknown}}, 401},
		"another caller":              {http.Header{"Authorization": {other}}, 404},
		"caller with few rights":      {http.Header{"Authorization": {low}}, 403},
		"own origin":                  {http.Header{"Origin": {"http://localhost"}, "Host": {"localhost"}}, 101},
	} {
		// websocket.Dial needs no Close
		conn, resp, err := dialPTY(t, s, ptyPath(id, "argv="+`%5B%22true%22%5D`), c.header)
		if resp == nil || resp.StatusCode != c.status || (err == nil) != (c.status == 101) {
			t.Errorf("%s: answer %v, %v; want status %d", name, resp, err, c.status)
		}
		if err == nil {
			if code, last := readToClose(t, conn); code != 1000 || last.Type != "exit" {
				t.Errorf("%s: closed with %v after %+v, want 1000 after exit", name, code, last)
			}
		}
	}
	invalidHandshakes(t, s, id)
	ctx := within(t)
	harness.Eventually(t, harness.Short, "no shell runs", func() bool {
		list, err := s.Client.Shells(ctx, id)
		for _, sh := range list {
			if sh.Result == nil {
				return false
			}
			s.Client.KillShell(ctx, sh.ID, 0, true) // repeated by Eventually
		}
		return err == nil
	})
}

// revokedLater creates a token for the test and returns the value of its Authorization header.
func revokedLater(t *testing.T, s *harness.Server, r v1.TokenRequest) string {
	t.Helper()
	got, err := s.Client.Tokens.Create(within(t), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Client.Tokens.Revoke(context.Background(), got.ID) })
	return "Bearer " + got.Secret
}

// invalidHandshakes checks that the error of a request that is not a valid handshake names the
// field.
func invalidHandshakes(t *testing.T, s *harness.Server, id string) {
	t.Helper()
	for name, c := range map[string]struct {
		path, field string
		header      []string
	}{
		"no upgrade":          {ptyPath(id, ""), "Upgrade", nil},
		"no key":              {ptyPath(id, ""), "Sec-WebSocket-Key", handshake[:6]},
		"no subprotocol":      {ptyPath(id, ""), "Sec-WebSocket-Protocol", handshake[:8]},
		"unknown parameter":   {ptyPath(id, "x=1"), "x", handshake},
		"invalid argv":        {ptyPath(id, "argv=top"), "argv", handshake},
		"invalid columns":     {ptyPath(id, "cols=-4"), "cols", handshake},
		"shell and command":   {ptyPath(id, "shell=x&command=top"), "command", handshake},
		"offset of a new one": {ptyPath(id, "offset=4"), "offset", handshake},
		"header and query": {
			ptyPath(id, "cols=4"), "Orchestrator-Exec", append([]string{"Orchestrator-Exec", "e30"}, handshake...),
		},
		"unknown field in the header": {
			ptyPath(id, ""), "nope", append([]string{"Orchestrator-Exec", "eyJub3BlIjoxfQ"}, handshake...),
		},
	} {
		a := s.Ask(t, "GET", c.path, "", c.header...)
		if !bytes.Contains(a.Body, []byte(`"field":"`+c.field+`"`)) || a.Status != 400 {
			t.Errorf("%s: status %d %s, want 400 for field %s", name, a.Status, a.Body, c.field)
		}
	}
}

// handshake is the header of a valid handshake.
var handshake = []string{
	"Upgrade", "websocket",
	"Connection", "Upgrade",
	"Sec-WebSocket-Version", "13",
	"Sec-WebSocket-Key", "AAAAAAAAAAAAAAAAAAAAAA==",
	"Sec-WebSocket-Protocol", v1.TerminalProtocol,
}

// testHostileMessages sends invalid messages. The server must close the connection with a code and
// a problem, and the terminal must continue.
func testHostileMessages(t *testing.T, s *harness.Server, id string) {
	keep := openTerminal(t, s, id, v1.TerminalRequest{Argv: []string{"sleep", "1000"}})
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
		field string // of the problem, or "" if none is needed
	}{
		"message over the limit": {"", binary(v1.TerminalInput+2, 1), 1009, ""},
		"control over the limit": {"", text(`{"type":"resize","x":"` + strings.Repeat("x", v1.TerminalControl) + `"}`),
			1009, "message"},
		"not JSON":                     {"", text("garbage"), 1007, "message"},
		"unknown type":                 {"", text(`{"type":"eat"}`), 1008, "type"},
		"field of another type":        {"", text(`{"type":"resize","colour":1}`), 1007, "message"},
		"zero columns":                 {"", text(`{"type":"resize","cols":0,"rows":5}`), 1008, "cols"},
		"too many columns":             {"", text(`{"type":"resize","cols":70000,"rows":5}`), 1008, "cols"},
		"unknown signal":               {"", text(`{"type":"signal","signal":99}`), 1008, "signal"},
		"input of a read-only client":  {"&read_only=true", binary(1, 1), 1008, "read_only"},
		"signal of a read-only client": {"&read_only=true", text(`{"type":"signal","signal":9}`), 1008, "read_only"},
		"more than the window":         {"", binary(v1.TerminalInput, 64), 1008, "message"},
		"detach":                       {"", text(`{"type":"detach"}`), 1000, ""},
	} {
		conn, m := openPTY(t, s, id, "shell="+keep.Shell()+c.query)
		if m.Shell != keep.Shell() {
			t.Errorf("%s: first message %+v, want shell %s", name, m, keep.Shell())
		}
		// Read while sending: the server waits some seconds for a client that only writes, and then
		// closes the connection.
		sent := make(chan error, 1)
		go func() { sent <- c.send(conn) }() // it fails if the server has closed the connection by then
		code, last := readToClose(t, conn)
		<-sent
		wrongProblem := last.Type != "error" || last.Problem == nil || last.Problem.Field != c.field
		if code != c.code || c.field != "" && wrongProblem {
			t.Errorf("%s: closed with %v after %+v, problem %+v; want code %v and field %q",
				name, code, last, last.Problem, c.code, c.field)
		}
	}
	if sh, err := s.Client.Shell(within(t), keep.Shell()); err != nil || sh.State != "running" {
		t.Errorf("Shell after invalid messages = %+v, %v; want it running", sh, err)
	}
}

// testGarbageFrames sends bytes that are not WebSocket frames after the handshake. Only the
// connection may be affected.
func testGarbageFrames(t *testing.T, s *harness.Server, id string) {
	keep := openTerminal(t, s, id, v1.TerminalRequest{Argv: []string{"cat"}})
	masked := func(head ...byte) []byte { return append(head, 0, 0, 0, 0) }
	for name, frame := range map[string][]byte{
		"noise":                               bytes.Repeat([]byte{0xff, 0x00, 0x9c, 0x13}, 4096),
		"not masked":                          {0x82, 0x01, 'x'},
		"reserved bits":                       masked(0xf2, 0x80),
		"unknown opcode":                      masked(0x8b, 0x80),
		"frame with a huge length and no end": masked(0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"negative length":                     masked(0x82, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff),
		"long ping":                           masked(0x89, 0xfe, 0x01, 0x00),
		"continuation of nothing":             masked(0x80, 0x80),
		"half a frame, no end":                masked(0x82, 0xfe, 0x10, 0x00),
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
		resp, err := http.ReadResponse(r, nil) // an upgraded connection has no body
		if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("%s: handshake %v, %v; want status 101", name, resp, err)
		}
		nc.Write(frame)
		if strings.HasSuffix(name, "no end") {
			nc.Close() // the rest of the frame never comes
			continue
		}
		if _, err := io.Copy(io.Discard, r); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Errorf("%s: read: %v, want the connection closed or reset", name, err)
		}
		nc.Close()
	}
	keep.types("still here\r")
	keep.sees("still here\r\nstill here\r\n")
}
