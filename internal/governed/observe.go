package governed

import (
	"cmp"
	"context"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/stage"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
)

// Ended describes a tool call that ended. A call that got the answer of an earlier one, by its
// idempotency key, is not reported.
type Ended struct {
	// Tool and Profile are "" if they do not exist, so their number is bounded.
	Tool, Profile, Caller string
	Ending                string
	// Class is that of the verdict, or "" without one.
	Class string
}

// observe is execute as a stage.
func (t *transaction) observe(ctx context.Context) (v1.ToolResult, error) {
	ctx, end := stage.Begin(ctx, t.s.opts.Stages, stage.Call)
	res, err := t.execute(ctx)
	e := t.ended()
	tracing.Annotate(ctx, "call", t.id, "caller", e.Caller, "tool", e.Tool, "profile", e.Profile, "ending", e.Ending,
		"sandbox", t.sandbox)
	end(err)
	return res, err
}

// notifyEnd calls Options.OnEnd. The ending is that of the audit record.
func (t *transaction) notifyEnd() {
	if t.s.opts.OnEnd != nil {
		t.s.opts.OnEnd(t.ended())
	}
}

// ended describes the call, which has ended.
func (t *transaction) ended() Ended {
	e := Ended{Caller: t.principal.Caller, Ending: cmp.Or(t.record.Ending, EndedFailed)}
	if t.profile != nil {
		e.Profile = t.profile.Profile.Name
	}
	if t.tool != nil {
		e.Tool = t.tool.Name()
	}
	if t.verdict != nil {
		e.Class = t.verdict.Class
	}
	return e
}
