package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

func TestTerminalRefusesOtherOrigins(t *testing.T) {
	for name, c := range map[string]struct {
		host, from string
		header     []string
		ok         bool
	}{
		"no page": {"127.0.0.1:8700", "127.0.0.1:5", nil, true},
		"its own page": {"127.0.0.1:8700", "127.0.0.1:5", []string{"Origin", "http://127.0.0.1:8700"},
			true},
		"its own by name": {"localhost:8700", "[::1]:5",
			[]string{"Origin", "http://LOCALHOST:8700", "Sec-Fetch-Site", "same-origin"}, true},
		"another page": {"127.0.0.1:8700", "127.0.0.1:5", []string{"Origin", "http://evil.example"},
			false},
		"another port":     {"127.0.0.1:8700", "127.0.0.1:5", []string{"Origin", "http://127.0.0.1:1"}, false},
		"a sandboxed page": {"127.0.0.1:8700", "127.0.0.1:5", []string{"Origin", "null"}, false},
		"a file":           {"127.0.0.1:8700", "127.0.0.1:5", []string{"Origin", "file://"}, false},
		"a name that leads here": {"evil.example:8700", "127.0.0.1:5",
			[]string{"Origin", "http://evil.example:8700"}, false},
		"a site of others":        {"127.0.0.1:8700", "127.0.0.1:5", []string{"Sec-Fetch-Site", "cross-site"}, false},
		"its own page, from afar": {"box.example", "192.0.2.7:5", []string{"Origin", "https://box.example"}, true},
		"another page, from afar": {"box.example", "192.0.2.7:5", []string{"Origin", "https://evil.example"}, false},
		"two origins, the last its": {"127.0.0.1:8700", "127.0.0.1:5",
			[]string{"Origin", "http://evil.example", "Origin", "http://127.0.0.1:8700"}, false},
	} {
		r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes/x/pty", nil)
		r.Host, r.RemoteAddr = c.host, c.from
		for i := 0; i+1 < len(c.header); i += 2 {
			r.Header.Add(c.header[i], c.header[i+1])
		}
		err := new(Server).checkOrigin(r)
		if (err == nil) != c.ok || err != nil && !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: checkOrigin: %v, want success %t or else PermissionDenied", name, err, c.ok)
		}
	}
}

// A refused request opens no terminal, because the client would not learn its id.
func TestTerminalNeedsCompleteHandshake(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "")
	id := lease(t, srv)
	whole := map[string]string{
		"Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
		"Sec-WebSocket-Key": "MDEyMzQ1Njc4OWFiY2RlZg==", "Sec-WebSocket-Protocol": v1.TerminalProtocol,
	}
	for _, c := range []struct {
		method, without string
		status          int
	}{
		{http.MethodHead, "", 404},
		{http.MethodGet, "Connection", 400}, {http.MethodGet, "Upgrade", 400},
		{http.MethodGet, "Sec-WebSocket-Version", 400},
		{http.MethodGet, "Sec-WebSocket-Key", 400}, {http.MethodGet, "Sec-WebSocket-Protocol", 400},
	} {
		var header []string
		for name, value := range whole {
			if name != c.without {
				header = append(header, name, value)
			}
		}
		if got := ask(t, srv, c.method, "/v1/sandboxes/"+id+"/pty", "", header...); got.status != c.status {
			t.Errorf("%s without %q: status %d %s, want %d", c.method, c.without, got.status, got.body, c.status)
		}
	}
	var shells v1.List[v1.Shell]
	ask(t, srv, "GET", "/v1/sandboxes/"+id+"/shells", "").into(t, &shells)
	if len(shells.Items) > 0 {
		t.Errorf("shells = %+v, want none", shells.Items)
	}
}

func TestReadPTY(t *testing.T) {
	read := func(query string, header ...string) (ptyRequest, error) {
		r := httptest.NewRequest(http.MethodGet, "/v1/sandboxes/x/pty?"+query, nil)
		for i := 0; i+1 < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return readPTY(r)
	}
	got, err := read(`argv=%5B%22top%22,%22-d%22,%221%22%5D&cols=90&rows=20&term=vt100&cwd=/tmp`)
	if err != nil || len(got.open.Argv) != 3 || got.open.Cols != 90 || got.open.Rows != 20 ||
		got.open.Term != "vt100" || got.offset != -1 {
		t.Errorf("readPTY of a new terminal = %+v, %v; want the values of the query and offset -1", got, err)
	}
	if got, err = read("shell=s&offset=0&read_only=true"); err != nil || got.shell != "s" || got.offset != 0 ||
		!got.readOnly {
		t.Errorf("readPTY of an existing terminal = %+v, %v; want shell s read-only from offset 0", got, err)
	}
	if got, err = read("", headerExec, "eyJlbnYiOnsiQSI6ImIifX0"); err != nil || got.open.Env["A"] != "b" {
		t.Errorf("readPTY of a header = %+v, %v; want A=b in its environment", got, err)
	}
	for query, field := range map[string]string{
		"argv=top": "argv", "cols=x": "cols", "rows=-1": "rows", "shell=a&cols=3": "cols", "offset=3": "offset",
		"read_only=true":    "read_only",
		"shell=a&offset=-1": "offset", "other=1": "other",
	} {
		if _, err := read(query); err == nil || field == "" || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("readPTY(%s) = %v, want an error of the field", query, err)
		}
	}
}
