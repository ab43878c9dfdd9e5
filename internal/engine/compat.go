package engine

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// The readonly system's own clients know these.
const (
	compatProfile = "readonly"
	compatTool    = "run_shell"
	compatNoPlace = "Workspace not found"
	compatBroken  = "The command could not be run"
)

// CompatAnswer is what those clients get, refusals included.
type CompatAnswer struct {
	Success    bool   `json:"success"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	ReturnCode int    `json:"returncode"`
}

// ShellCompat runs a command for the readonly system's existing clients: they
// send no token, and name a workspace by a path. Every answer has their shape;
// what went wrong around a command stays in the log. The workspace is bound
// read-only.
func (e *Engine) ShellCompat(ctx context.Context, command, workspace string, timeout time.Duration) (json.RawMessage, error) {
	g := e.opts.Governance
	if g == nil || g.Compat == nil {
		return nil, errUngoverned
	}
	call := Call{Caller: g.Compat.Caller, Profile: compatProfile, Trust: tool.TrustMax, Via: "shell"}
	name, ok := g.Compat.Workspaces[workspace]
	if !ok {
		body, err := json.Marshal(map[string]string{"command": command, "workspace": workspace})
		if err != nil {
			return nil, err
		}
		//nolint:errcheck // it gives back the cause, which the answer says
		e.RefuseCall(ctx, call, compatTool, body, invalid("workspace", "is not one that is mapped"))
		return marshal(CompatAnswer{Stderr: compatNoPlace, ReturnCode: -1})
	}
	input, err := json.Marshal(map[string]any{"command": command, "timeout": timeout.Seconds()})
	if err != nil {
		return nil, err
	}
	res, err := e.CallTool(ctx, call, compatTool, v1.ToolCall{Input: input, Session: "shell-" + name, Workspace: name, ReadOnly: true}, Watch{})
	if _, bad := errors.AsType[*InvalidError](err); bad && errdefs.IsNotFound(err) { // it was not made yet
		return marshal(CompatAnswer{Stderr: compatNoPlace, ReturnCode: -1})
	}
	if err != nil {
		e.log.Error("command of a readonly client not run", "error", err)
		return marshal(CompatAnswer{Stderr: compatBroken, ReturnCode: -1})
	}
	if res.Ending == policyDenied && res.Verdict != nil {
		return marshal(CompatAnswer{Stderr: compatRefusal(*res.Verdict), ReturnCode: -1})
	}
	return res.Output, nil
}

// compatRefusal words a refusal as that system's own endpoint did, which was not
// as its tool did, with the reason behind it.
func compatRefusal(v v1.Verdict) string {
	switch v.Class {
	case policy.ClassForbidden:
		return "Blocked: '" + strings.TrimPrefix(v.Rule, v.Class+":") + "' not allowed"
	case policy.ClassAllowList, policy.ClassEmpty:
		return "Command not allowed: " + v.Message
	}
	return v.Message
}
