package mcp

import (
	"context"
	"net/http"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// panicking is an engine whose outputs cannot be read.
type panicking struct{ *fake }

func (panicking) CallOutput(context.Context, caller.Principal, string, tool.OutputRequest) (v1.Output, error) {
	panic("broken")
}

func TestPanicInRequestIsAnswered(t *testing.T) {
	at, s := serve(t, Options{Engine: panicking{newFake()}})
	id := introduce(t, at, "ben")
	_, body := request(t, http.MethodPost, at, "ben", id,
		`{"jsonrpc":"2.0","id":7,"method":"resources/read","params":{"uri":"orchestrator://calls/x/stdout"}}`)
	wantPart(t, "a request that panics", body, "the service could not do this")
	s.requests.mu.Lock()
	defer s.requests.mu.Unlock()
	if len(s.requests.n) != 0 {
		t.Errorf("requests under way: %v, want none", s.requests.n)
	}
}
