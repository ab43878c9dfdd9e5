package governed

import (
	"context"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Recover returns the answer of a tool call whose process ended. It returns nil if the call
// still waits for approval or was approved and did not start: it continues when its caller returns.
// Any other call was lost.
func (s *Service) Recover(ctx context.Context, k store.Key) (answer any, err error) {
	row, err := s.opts.Store.Approvals().ApprovalByKey(ctx, k.Caller, k.Key)
	switch {
	case errdefs.IsNotFound(err):
	case err != nil:
		return nil, err
	case row.Used.IsZero():
		return nil, nil
	}
	return v1.ToolResult{
		ID: k.Ref, Ending: string(runtime.SandboxLost), Approval: row.ID,
		Error: &v1.ToolError{Type: string(runtime.SandboxLost), Message: "the orchestrator stopped while the call ran"},
	}, nil
}

// OpTool is the operation of tool calls. It is stored with an idempotency key.
const OpTool = "tool"
