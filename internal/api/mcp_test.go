package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
	"github.com/sandbox-orchestrator/orchestrator/internal/mcp"
)

// A tool call over MCP is recorded when it is refused for its profile, or because the caller has
// too many requests, as over HTTP.
func TestRefusedMCPCallIsRecorded(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	talk := mcp.New(mcp.Options{Engine: e.Governed, ForCallers: core.ForCallers})
	s := New(Options{Engine: e, MCP: talk})
	srv := httptest.NewServer(s.mux)
	t.Cleanup(func() {
		srv.Close()
		if err := talk.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ann := append(tokenOf(t, e, v1.TokenRequest{Caller: "ann"}),
		"Content-Type", formJSON, "Accept", formJSON+", "+formEvents)
	post := func(path, body string) asked { return ask(t, srv, "POST", path, body, ann...) }
	const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{` +
		`"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`
	got := post(mcpPath, hello)
	if got.status != http.StatusOK || got.header.Get("Mcp-Session-Id") == "" {
		t.Fatalf("initialize = %+v, want 200 with a session id", got)
	}
	ann = append(ann, "Mcp-Session-Id", got.header.Get("Mcp-Session-Id"), "Mcp-Protocol-Version", "2025-11-25")
	const call = `{"jsonrpc":"2.0","id":2,"method":"tools/call",` +
		`"params":{"name":"system_bash","arguments":{"command":"ls"}}}`
	for _, c := range []struct{ path, body, says string }{
		{mcpPath + "?profile=universal", call, "profile is not yours to choose"},
		{mcpPath + "?profile=a&profile=b", call, `"profile" is given 2 times`},
		{mcpPath, strings.Replace(call, "ls", strings.Repeat("x", maxMCPBody), 1), "body is over"},
		{mcpPath, call, "callers.max_requests"}, // the loop below removes the room
	} {
		if strings.HasPrefix(c.says, "callers") {
			s.conns = httpguard.NewConnLimiter(httpguard.ConnBounds{Total: 8, Anonymous: 4, Callers: 4}, s.log)
		}
		got := post(c.path, c.body)
		if p, ok := v1.Decode([]byte(got.body)); ok {
			got.body = p.Detail
		}
		var about []v1.AuditRecord
		for _, r := range records(t, srv, "caller=ann") {
			if strings.Contains(r.Error, c.says) && r.Via == "mcp" {
				about = append(about, r)
			}
		}
		if len(about) != 1 || !strings.Contains(got.body, c.says) {
			t.Errorf("%s: status %d %s, records %+v; want one record and %q in both",
				c.path, got.status, got.body, about, c.says)
		}
	}
	if all := records(t, srv, "caller=ann"); len(all) != 5 { // the first call also has an opening record
		t.Errorf("%d records, want 5: %+v", len(all), all)
	}
}
