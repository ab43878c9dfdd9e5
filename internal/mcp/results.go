package mcp

import (
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/httpguard"
)

// Bounds of the results that the library holds until clients have read them, in bytes of JSON.
const (
	maxResults       = 128 << 20 // of all callers
	maxCallerResults = 16 << 20  // of one caller; one result alone may be larger
)

// newResultBudget returns a budget for the results of POST requests. Operators are not charged.
func newResultBudget() *httpguard.Budget {
	return httpguard.NewBudget(httpguard.Bounds{Total: maxResults, Caller: maxCallerResults, First: true},
		func(_ bool, held, _ int64) error {
			return &caller.QuotaError{Quota: "mcp_results", Limit: maxCallerResults, Used: held,
				Unit: "bytes of results that you have not read", RetryAfter: retryTime}
		})
}

// charge charges n bytes to the request, or returns a *caller.QuotaError. It charges nothing to a
// request that has ended: another bound applies to results that are kept for clients that resume.
func (p *post) charge(b *httpguard.Budget, of caller.Principal, n int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return nil
	}
	if err := b.Charge(of, 0, n); err != nil {
		return err
	}
	p.results += n
	return nil
}

// end releases the results of the request.
func (p *post) end(b *httpguard.Budget, of caller.Principal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	b.Release(of, p.results)
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
	err = a.post.charge(s.results, a.Principal, int64(len(text)))
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
