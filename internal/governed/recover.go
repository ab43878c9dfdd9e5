package governed

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/idempotency"
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
	return lostResult(k.Ref, row.ID, "the orchestrator stopped while the call ran"), nil
}

// lostResult returns the result of a call that may have run and whose end was not observed.
func lostResult(id, approval, message string) v1.ToolResult {
	const lost = string(runtime.SandboxLost)
	return v1.ToolResult{ID: id, Ending: lost, Approval: approval, Error: &v1.ToolError{Type: lost, Message: message}}
}

// keepKey stores a result under the call's idempotency key if err ended the call after its tool may
// have changed something: a retry must not run the tool again. It returns err.
func (t *transaction) keepKey(ctx context.Context, err error) error {
	p := t.principal
	if err == nil || !t.mayHaveRun || p.Key == "" {
		return err
	}
	message := "the call failed after its tool started"
	if said := core.ForCallers(err); said != nil {
		message += ": " + said.Error()
	}
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	body, storeErr := json.Marshal(lostResult(t.id, t.approval, message))
	if storeErr == nil {
		storeErr = t.s.opts.Keys.Finish(finish, store.Key{Caller: p.Caller, Key: p.Key, Ref: t.id}, body)
	}
	if storeErr != nil { // The key stays taken without an answer.
		t.s.log.Error("failed to record the answer of an idempotency key", "call", t.id, "error", storeErr)
	}
	return fmt.Errorf("%w: %w", idempotency.ErrMayHaveRun, err)
}

// OpTool is the operation of tool calls. It is stored with an idempotency key.
const OpTool = "tool"
