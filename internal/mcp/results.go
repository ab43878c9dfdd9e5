package mcp

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
)

// Bounds of the results that the library holds until clients have read them, in bytes of JSON.
const (
	maxResults       = 128 << 20 // of all callers
	maxCallerResults = 16 << 20  // of one caller; one result alone may be larger
)

// resultBudget counts the results of POST requests until these end. Operators are not counted. The
// zero value is ready to use.
type resultBudget struct {
	mu       sync.Mutex
	total    int64
	byCaller map[string]int64
}

// charge adds n bytes to a request of the caller, or returns a *caller.QuotaError. It counts
// nothing for a request that has ended: what is kept for clients that resume has another bound.
func (b *resultBudget) charge(p caller.Principal, of *post, n int64) error {
	if p.Operator || of == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.byCaller[p.Caller]
	switch {
	case of.ended:
		return nil
	case held > 0 && (held+n > maxCallerResults || b.total+n > maxResults):
		return &caller.QuotaError{Quota: "mcp_results", Limit: maxCallerResults, Used: held,
			Unit: "bytes of results that you have not read", RetryAfter: retryTime}
	}
	if b.byCaller == nil {
		b.byCaller = map[string]int64{}
	}
	b.total += n
	b.byCaller[p.Caller] += n
	of.results += n
	return nil
}

// end subtracts the results of a request that has ended.
func (b *resultBudget) end(p caller.Principal, of *post) {
	b.mu.Lock()
	defer b.mu.Unlock()
	of.ended = true
	if of.results == 0 {
		return
	}
	b.total -= of.results
	if b.byCaller[p.Caller] -= of.results; b.byCaller[p.Caller] <= 0 {
		delete(b.byCaller, p.Caller)
	}
}

// chargeResult charges a result to its request. Over the budget it returns a short result for a
// tool call, because the tool has run, and an error for other requests.
func (s *Server) chargeResult(a Access, r mcp.Result) (mcp.Result, error) {
	if a.post == nil || a.Principal.Operator || r == nil {
		return r, nil
	}
	text, err := json.Marshal(r)
	if err != nil {
		return nil, s.protocolError(a, fmt.Errorf("encode a result: %w", err), "request refused")
	}
	err = s.results.charge(a.Principal, a.post, int64(len(text)))
	call, ok := r.(*mcp.CallToolResult)
	switch {
	case err == nil:
		return r, nil
	case !ok:
		return nil, s.protocolError(a, err, "request refused")
	}
	short := &mcp.CallToolResult{Meta: call.Meta, IsError: call.IsError, Content: []mcp.Content{&mcp.TextContent{
		Text: "The call has ended, but its result was dropped: " + s.userMessage(a, err, "result dropped")}}}
	if id, ok := call.Meta[metaCall].(string); ok && id != "" {
		short.Content = append(short.Content, outputLink(id))
	}
	return short, nil
}
