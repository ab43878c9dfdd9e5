package tool

import v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"

// Watch observes a tool call in progress. Each function may be nil. They are called by one
// goroutine at a time and must not block.
type Watch struct {
	// Asked is called when the call waits for this approval request.
	Asked func(v1.Approval)
	// Started is called with the sandbox in which the call runs.
	Started func(sandbox string)
	// Output is called with output as the command writes it. p is valid only during the call.
	Output func(stream string, p []byte)
}
