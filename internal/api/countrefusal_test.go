package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

func TestRemoteShellRefusalsAreCounted(t *testing.T) {
	t.Parallel()
	srv, _ := newServer(t, "secret")
	for range 20 {
		got := ask(t, srv, "POST", "/shell", `{"command":"ls"}`, "Content-Type", formJSON, "Origin", "http://evil.example")
		problemIs(t, got, http.StatusForbidden, "permission_denied", "")
	}
	ask(t, srv, "POST", "/shell", `{`, "Content-Type", formJSON)
	got := ask(t, srv, "GET", "/v1/audit", "", "Authorization", "Bearer secret")
	var list v1.List[v1.AuditRecord]
	got.into(t, &list)
	if len(list.Items) != 2 || list.Items[0].Kind != "refused" || list.Items[0].Caller != "" ||
		list.Items[1].Caller != "old" {
		t.Errorf("recorded %+v, want one count, and one call of the route's caller", list.Items)
	}
}

func TestConnectionsOverLimitAreCounted(t *testing.T) {
	t.Parallel()
	e, _ := newEngine(t)
	ann := tokenOf(t, e, v1.TokenRequest{Caller: "ann"})
	address, s := serveLimited(t, e, httpguard.ConnBounds{Total: 16, Anonymous: 4, Callers: 8, Requests: 1, Streams: 1})
	s.opts.Refusals.Rate, s.opts.Refusals.Burst = 1e-6, 1
	defer answers(t, address, "/v1/approvals/events", http.StatusOK, ann...).Close()
	call := func() (string, error) {
		p := dialed(t, address)
		fmt.Fprintf(p, "POST /v1/tools/x/call HTTP/1.1\r\nHost: o\r\n%s: %s\r\nContent-Length: 0\r\n\r\n", ann[0], ann[1])
		return p.in.ReadString('\n')
	}
	if got, err := call(); err != nil || got != "HTTP/1.1 429 Too Many Requests\r\n" {
		t.Errorf("the first connection over the limit = %q, %v; want status 429", got, err)
	}
	for range 20 {
		if got, err := call(); !errors.Is(err, io.EOF) {
			t.Errorf("a connection over the rate of refusals = %q, %v; want its end", got, err)
		}
	}
	list, err := e.Governed.Audit(t.Context(), caller.Local(""), governed.AuditFilter{Caller: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	kinds := make([]string, 0, len(list.Items))
	for _, r := range list.Items {
		kinds = append(kinds, r.Kind+" "+r.Action)
	}
	if want := []string{"event x", "refused " + unansweredCall}; !slices.Equal(kinds, want) {
		t.Errorf("recorded %q, want %q", kinds, want)
	}
}
