package api

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// talker is an MCP server that reports who called.
type talker struct{}

func (talker) Serve(w http.ResponseWriter, _ *http.Request, p caller.Principal, over func()) {
	defer over()
	fmt.Fprintf(w, "operator %v", p.Operator)
}

func (talker) Refuse(_ http.ResponseWriter, _ *http.Request, _ caller.Principal, cause error) error {
	return cause
}

// listen serves until the test ends.
func listen(t *testing.T, s *Server, network, address string) net.Addr {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, time.Second) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr()
}

// rawly sends a request without changes and reads the answer.
func rawly(t *testing.T, at net.Addr, head string) (status int, body string) {
	t.Helper()
	conn, err := net.Dial(at.Network(), at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, head+"Connection: close\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// A request with invalid credentials is refused on every route, also on open routes.
func TestInvalidAuthorizationIsRefusedOnEveryRoute(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	tok, err := e.Callers.CreateToken(t.Context(), caller.Local(""), v1.TokenRequest{Caller: "ann", Trust: 1})
	if err != nil {
		t.Fatal(err)
	}
	const own = "secret"
	routes := []struct{ head, open string }{ // open: the status without a token, if the service requires one
		{"GET /v1/pools HTTP/1.1\r\n", ""},
		{"POST /v1/tools/system.bash/call HTTP/1.1\r\nContent-Length: 0\r\n", ""},
		{"POST /mcp HTTP/1.1\r\nContent-Length: 0\r\n", ""},
		{"POST /shell HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 0\r\n", "200"},
		{"GET /v1/sandboxes/x/ports/80/ HTTP/1.1\r\n", ""},
		{"GET /v1/sandboxes/x/ports/80 HTTP/1.1\r\nUpgrade: tcp\r\n", ""},
		{"GET /v1/sandboxes/x/pty HTTP/1.1\r\nUpgrade: websocket\r\n", ""},
		{"GET /healthz HTTP/1.1\r\n", "200"},
		{"GET /nothing HTTP/1.1\r\n", ""},
	}
	forms := []struct {
		header string
		caller string // "": refused
	}{
		{"", "operator"},
		{"Authorization: Bearer TOKEN", "ann"},
		{"Authorization: bearer TOKEN", "ann"},
		{"authorization: BEARER TOKEN", "ann"},
		{"Authorization: Bearer  TOKEN", "ann"},
		{"Authorization: Bearer TOKEN ", "ann"},
		{"Authorization:Bearer TOKEN", "ann"},
		{"Authorization:", ""},
		{"Authorization:  ", ""},
		{"Authorization: Bearer", ""},
		{"Authorization: Bearer ", ""},
		{"Authorization: TOKEN", ""},
		{"Authorization: Token TOKEN", ""},
		{"Authorization: Basic TOKEN", ""},
		{"Authorization: Basic YTpi", ""},
		{"Authorization: Digest username=\"a\"", ""},
		{"Authorization: BearerTOKEN", ""},
		{"Authorization: Bearer\tTOKEN", ""},
		{"Authorization: Bearer \tTOKEN", ""},
		{"Authorization: Bearer TOKEN TOKEN", ""},
		{"Authorization: Bearer TOKEN, Bearer TOKEN", ""},
		{"Authorization: Bearer TOKENx", ""},
		{"Authorization: Bearer orc_", ""},
		{"Authorization: Bearer nobodys", ""},
		{"Authorization: \"Bearer\" TOKEN", ""},
		{"Authorization: Bearer TOKEN\r\nAuthorization: Bearer TOKEN", ""},
		{"Authorization: Bearer TOKEN\r\nauthorization: Basic YTpi", ""},
		{"Authorization:\r\nAuthorization: Bearer TOKEN", ""},
	}
	for _, token := range []string{"", own} {
		for _, network := range []string{"unix", "tcp"} {
			address := "127.0.0.1:0"
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
			}
			at := listen(t, New(Options{Engine: e, Token: token, ShellCaller: "old", MCP: talker{}}), network, address)
			for _, f := range forms {
				header := strings.ReplaceAll(f.header, "TOKEN", tok.Secret)
				if header != "" {
					header += "\r\n"
				}
				for _, r := range routes {
					status, body := rawly(t, at, r.head+"Host: localhost\r\n"+header)
					refused := f.caller == "" || header == "" && token != "" && r.open == ""
					if (status == http.StatusUnauthorized) != refused {
						t.Errorf("%s, own token %q, %q, %q: status %d %s, want 401: %t",
							network, token, r.head, f.header, status, body, refused)
					}
				}
				_, caller := rawly(t, at, "POST /mcp HTTP/1.1\r\nContent-Length: 0\r\nHost: localhost\r\n"+header)
				if f.caller == "ann" && caller != "operator false" {
					t.Errorf("%s, own token %q, %q: MCP caller = %q, want %q", network, token, f.header, caller, "operator false")
				}
				// GET /v1/tokens is for operators only.
				status, got := rawly(t, at, "GET /v1/tokens HTTP/1.1\r\nHost: localhost\r\n"+header)
				if may := status == http.StatusOK; may != (f.caller == "operator" && token == "") {
					t.Errorf("%s, own token %q, %q: /v1/tokens: status %d %s, want 200 for operators only",
						network, token, f.header, status, got)
				}
			}
			if token == "" {
				continue
			}
			for _, form := range []string{"Bearer ", "bearer ", "BEARER  "} {
				status, got := rawly(t, at,
					"GET /v1/tokens HTTP/1.1\r\nHost: localhost\r\nAuthorization: "+form+own+"\r\n")
				if !json.Valid([]byte(got)) || status != http.StatusOK {
					t.Errorf("%s, %q and the service's token: status %d %s, want 200 with JSON", network, form, status, got)
				}
			}
		}
	}
}
