package api

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
)

func TestReadonlyShellAllowsLocalProgramsOnly(t *testing.T) {
	for name, c := range map[string]struct {
		remote, local string
		header        []string
		ok            bool
	}{
		"loopback":         {"127.0.0.1:5", "tcp", nil, true},
		"loopback of IPv6": {"[::1]:5", "tcp", nil, true},
		"a unix socket":    {"@", "unix", nil, true},
		"with a charset": {"127.0.0.1:5", "tcp", []string{"Content-Type", "application/json; charset=utf-8"},
			true},
		"asked for by a person":    {"127.0.0.1:5", "tcp", []string{"Sec-Fetch-Site", "none"}, true},
		"another host":             {"192.0.2.7:5", "tcp", nil, false},
		"an unknown peer":          {"", "tcp", nil, false},
		"a page":                   {"127.0.0.1:5", "tcp", []string{"Origin", "http://evil.example"}, false},
		"a page without an origin": {"127.0.0.1:5", "tcp", []string{"Origin", "null"}, false},
		"a page of the same host":  {"127.0.0.1:5", "tcp", []string{"Sec-Fetch-Site", "same-site"}, false},
		"a form":                   {"127.0.0.1:5", "tcp", []string{"Content-Type", "text/plain"}, false},
		"a form that says nothing": {"127.0.0.1:5", "tcp", []string{"Content-Type", ""}, false},
		"a page of a rebound name": {"127.0.0.1:5", "tcp", []string{"Host", "evil.example:7070"}, false},
		"by the address of IPv6":   {"[::1]:5", "tcp", []string{"Host", "[::1]:7070"}, true},
		"a name on a unix socket":  {"@", "unix", []string{"Host", "orchestrator"}, true},
		"a form over a unix socket": {"@", "unix", []string{"Content-Type", "application/x-www-form-urlencoded"},
			false},
	} {
		r := httptest.NewRequest(http.MethodPost, "/shell", nil)
		r.RemoteAddr = c.remote
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i+1 < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		r.Host = cmp.Or(r.Header.Get("Host"), "localhost:7070")
		var addr net.Addr = &net.TCPAddr{}
		if c.local == "unix" {
			addr = &net.UnixAddr{Net: "unix"}
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, addr))
		if err := checkLocal(r); (err == nil) != c.ok {
			t.Errorf("%s: checkLocal: %v, want success %t", name, err, c.ok)
		}
	}
}

func TestReadonlyShellAnswersInItsForm(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "a token that its clients do not have")
	for _, body := range []string{`{`, `[]`, `{"command":7}`, `{"command":"ls","workspace":"/nope"}`,
		`{"command":"ls","workspace":"/srv/old","timeout":-1}`, `{"command":"ls","more":1}`} {
		got := ask(t, srv, "POST", "/shell", body, "Content-Type", formJSON)
		var a shellAnswer
		got.into(t, &a)
		if got.status != http.StatusOK || a.Success || a.Stderr == "" || a.ReturnCode != -1 {
			t.Errorf("%s: answer = %+v, want a failure in the clients' form", body, got)
		}
	}
	got := ask(t, srv, "POST", "/shell", `{"command":"ls"}`, "Content-Type", formJSON, "Origin", "http://evil.example")
	problemIs(t, got, http.StatusForbidden, "permission_denied", "")
}

func TestReadonlyShellIsOffByDefault(t *testing.T) {
	s := New(Options{Engine: &engine.Engine{}, Log: slog.New(slog.DiscardHandler)})
	w := httptest.NewRecorder()
	s.mux.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/shell", strings.NewReader(`{}`)))
	if w.Code != http.StatusNotFound {
		t.Fatalf("POST /shell = %d %s, want 404", w.Code, w.Body)
	}
}
