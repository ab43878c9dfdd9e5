package governed

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
func (s *Service) ShellCompat(
	ctx context.Context,
	command, workspace string,
	timeout time.Duration,
) (json.RawMessage, error) {
	g := s.opts.Config
	if g == nil || g.Compat == nil {
		return nil, ErrUngoverned
	}
	p := caller.Principal{Caller: g.Compat.Caller, Profile: compatProfile, Trust: tool.TrustMax, Via: "shell"}
	name, ok := g.Compat.Workspaces[workspace]
	if !ok {
		body, err := json.Marshal(map[string]string{"command": command, "workspace": workspace})
		if err != nil {
			return nil, err
		}
		//nolint:errcheck // it gives back the cause, which the answer says
		s.RefuseCall(ctx, p, compatTool, body, usererror.Invalid("workspace", "is not mapped"))
		return json.Marshal(CompatAnswer{Stderr: compatNoPlace, ReturnCode: -1})
	}
	input, err := json.Marshal(map[string]any{"command": command, "timeout": timeout.Seconds()})
	if err != nil {
		return nil, err
	}
	res, err := s.CallTool(
		ctx,
		p,
		compatTool,
		v1.ToolCall{Input: input, Session: "shell-" + name, Workspace: name, ReadOnly: true},
		Watch{},
	)
	if _, bad := errors.AsType[*usererror.InvalidError](err); bad &&
		errdefs.IsNotFound(err) { // the workspace was not created yet
		return json.Marshal(CompatAnswer{Stderr: compatNoPlace, ReturnCode: -1})
	}
	if err != nil {
		s.log.Error("failed to run the command of a readonly client", "error", err)
		return json.Marshal(CompatAnswer{Stderr: compatBroken, ReturnCode: -1})
	}
	if res.Ending == policyDenied && res.Verdict != nil {
		return json.Marshal(CompatAnswer{Stderr: compatRefusal(*res.Verdict), ReturnCode: -1})
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

// Compat maps the requests of the readonly system's clients, which send no token.
type Compat struct {
	Caller     string
	Workspaces map[string]string // by the path that clients send
}
