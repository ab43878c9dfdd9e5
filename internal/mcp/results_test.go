package mcp

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// largeOutputs is an engine whose calls have as much output as is asked for. JSON escapes each byte
// as six.
type largeOutputs struct{ *fake }

func (largeOutputs) CallOutput(
	_ context.Context,
	_ caller.Principal,
	_ string,
	r tool.OutputRequest,
) (v1.Output, error) {
	return v1.Output{Data: strings.Repeat("\x01", int(r.Limit)), NextOffset: r.Limit}, nil
}

func TestUnreadResultsAreBounded(t *testing.T) {
	at, s := serve(t, Options{Engine: largeOutputs{newFake()}})
	id := introduce(t, at, "ben")
	batch := make([]string, 0, maxBatch)
	for i := range maxBatch {
		batch = append(batch, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"resources/read",`+
			`"params":{"uri":"orchestrator://calls/x/stdout"}}`, 100+i))
	}
	_, body := request(t, http.MethodPost, at, "ben", id, "["+strings.Join(batch, ",")+"]",
		"Mcp-Protocol-Version", "2025-03-26")
	if got := int64(len(body)); got > maxCallerResults+1<<20 {
		t.Errorf("a batch is answered with %d bytes, want at most about %d", got, maxCallerResults)
	}
	if !strings.Contains(body, "bytes of results that you have not read") {
		t.Error("no message of the batch is refused, want one")
	}
	eventually(t, "the end of the charge", func() bool {
		held, _, callers := s.results.Held()
		return held == 0 && callers == 0
	})
	if _, body := request(t, http.MethodPost, at, "ben", id, batch[0]); len(body) < maxResource {
		t.Errorf("request after the batch is answered with %d bytes, want at least %d", len(body), maxResource)
	}
}

func TestToolResultOverBudgetIsReplaced(t *testing.T) {
	at, s := serve(t, Options{Engine: newFake()})
	id := introduce(t, at, "ben")
	other := newPost(t.Context(), func() {})
	ben := caller.Principal{Caller: "ben"}
	if err := other.charge(s.results, ben, maxCallerResults); err != nil {
		t.Fatal(err)
	}
	_, body := request(t, http.MethodPost, at, "ben", id, quick)
	if !strings.Contains(body, "its result was dropped") || !strings.Contains(body, outputScheme) {
		t.Errorf("body = %s, want that its result was dropped, and a link", body)
	}
	other.end(s.results, ben)
}
