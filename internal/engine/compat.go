package engine

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Names and messages that the readonly system's own clients expect.
const (
	compatProfile = "readonly"
	compatTool    = "run_shell"
	compatNoPlace = "Workspace not found"
	compatBroken  = "The command could not be run"
)

// CompatAnswer is the response of ShellCompat, also for refusals.
type CompatAnswer struct {
	Success    bool   `json:"success"`
	Stdout     string `json:"stdout"`
	Stderr     string `json:"stderr"`
	ReturnCode int    `json:"returncode"`
}

// ShellCompat runs a command for existing clients of the readonly system, which send no token and
// name a workspace by a path. Every answer has the form of CompatAnswer; failures of the service
// are only logged. The workspace is mounted read-only.
func (e *Engine) ShellCompat(ctx context.Context, command, workspace string, timeout time.Duration) (json.RawMessage, error) {
	g := e.opts.Governance
	if g == nil || g.Compat == nil {
		return nil, errUngoverned
	}
	p := caller.Principal{Caller: g.Compat.Caller, Profile: compatProfile, Trust: tool.TrustMax, Via: "shell"}
	name, ok := g.Compat.Workspaces[workspace]
	if !ok {
		body, err := json.Marshal(map[string]string{"command": command, "workspace": workspace})
		if err != nil {
			return nil, err
		}
		//nolint:errcheck // it gives back the cause, which the answer says
		e.RefuseCall(ctx, p, compatTool, body, usererror.Invalid("workspace", "is not mapped"))
		return marshal(CompatAnswer{Stderr: compatNoPlace, ReturnCode: -1})
	}
	input, err := json.Marshal(map[string]any{"command": command, "timeout": timeout.Seconds()})
	if err != nil {
		return nil, err
	}
	res, err := e.CallTool(ctx, p, compatTool, v1.ToolCall{Input: input, Session: "shell-" + name, Workspace: name, ReadOnly: true}, Watch{})
	if _, bad := errors.AsType[*usererror.InvalidError](err); bad && errdefs.IsNotFound(err) { // the workspace was not created yet
		return marshal(CompatAnswer{Stderr: compatNoPlace, ReturnCode: -1})
	}
	if err != nil {
		e.log.Error("failed to run the command of a readonly client", "error", err)
		return marshal(CompatAnswer{Stderr: compatBroken, ReturnCode: -1})
	}
	if res.Ending == policyDenied && res.Verdict != nil {
		return marshal(CompatAnswer{Stderr: compatRefusal(*res.Verdict), ReturnCode: -1})
	}
	return res.Output, nil
}

// compatRefusal returns the refusal text of that system's own endpoint, which differs from that of
// its tool.
func compatRefusal(v v1.Verdict) string {
	switch v.Class {
	case policy.ClassForbidden:
		return "Blocked: '" + strings.TrimPrefix(v.Rule, v.Class+":") + "' not allowed"
	case policy.ClassAllowList, policy.ClassEmpty:
		return "Command not allowed: " + v.Message
	}
	return v.Message
}
