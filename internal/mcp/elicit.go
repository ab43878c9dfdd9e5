package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// Limits of the texts in a question, in runes.
const (
	maxCommand = 2000
	maxReason  = 500
	maxName    = 100
)

// answerTime bounds forwarding an answer to the engine.
const answerTime = 30 * time.Second

// form is the JSON schema of the user's answer.
var form = json.RawMessage(`{
  "type": "object",
  "properties": {
    "decision": {
      "type": "string", "title": "Decision", "description": "Whether this may run", "enum": ["approve", "deny"]
    },
    "scope": {
      "type": "string", "title": "For", "enum": ["call", "session"], "default": "call",
      "description": "call: this once; session: also what the same rule asks about later in this session"
    }
  },
  "required": ["decision"]
}`)

// elicit asks the session's user about an approval request and answers it. Without an answer, the
// request stays open for others.
func (c *runningCall) elicit(a v1.Approval) {
	if !c.mayElicit() {
		return
	}
	res, err := c.client.Elicit(c.ctx, &mcp.ElicitParams{Mode: "form", Message: question(a), RequestedSchema: form})
	if err != nil {
		if c.ctx.Err() == nil {
			c.s.log.Warn("failed to elicit approval", "approval", a.ID, "error", err)
		}
		return
	}
	answer, ok := decision(res)
	if !ok || c.ctx.Err() != nil {
		return // dismissed without a decision, or answered by another approver
	}
	client := c.clientName()
	// The user's decision counts even if the call ends now.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(c.ctx), answerTime,
		errors.New("the answer was not recorded in time"))
	defer cancel()
	_, err = c.s.engine.AnswerApproval(ctx, caller.Principal{
		Caller: "elicitation:" + client, Token: c.access.Principal.Token, Trust: tool.TrustMax, Operator: true,
		Via: "mcp",
	}, a.ID, answer)
	if err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsConflict(err) { // it was answered already
		c.s.log.Warn("failed to record elicited answer", "approval", a.ID,
			"error", errors.Join(err, context.Cause(ctx)))
	}
}

// mayElicit reports whether the client supports elicitation and its user may answer.
func (c *runningCall) mayElicit() bool {
	o := c.s.opts
	if o.NoElicit || !o.ElicitAll && !c.access.Principal.Operator {
		return false
	}
	p := c.client.InitializeParams()
	if p == nil || p.Capabilities == nil || p.Capabilities.Elicitation == nil {
		return false
	}
	e := p.Capabilities.Elicitation
	return e.Form != nil || e.URL == nil // older clients set neither for a form
}

// clientName returns the client's name with only safe characters.
func (c *runningCall) clientName() string {
	n := ""
	if p := c.client.InitializeParams(); p != nil && p.ClientInfo != nil {
		n, _ = clip.Runes(p.ClientInfo.Name, maxName)
	}
	n = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_.", r) {
			return r
		}
		return '-'
	}, n)
	if n == "" {
		return "unnamed"
	}
	return n
}

// decision converts the user's answer. Declining is a denial; dismissing decides nothing.
func decision(res *mcp.ElicitResult) (v1.ApprovalAnswer, bool) {
	switch res.Action {
	case "decline":
		return v1.ApprovalAnswer{Action: "deny"}, true
	case "accept":
		a := v1.ApprovalAnswer{Scope: "call"}
		a.Action, _ = res.Content["decision"].(string)
		if scope, _ := res.Content["scope"].(string); scope == "session" {
			a.Scope = scope
		}
		return a, a.Action == "approve" || a.Action == "deny"
	}
	return v1.ApprovalAnswer{}, false
}

// question returns the text that the user reads. Text of a model or a sandbox is bounded, and
// quoted so that it cannot imitate the orchestrator's own words.
func question(a v1.Approval) string {
	var b strings.Builder
	if a.Kind == "trust" {
		fmt.Fprintf(&b, "Allow the tool %s to run with more trust than its caller has?\n", quote(a.Tool, maxName))
	} else {
		fmt.Fprintf(&b, "Allow the tool %s to run?\n", quote(a.Tool, maxName))
	}
	var in struct {
		Command *string `json:"command"`
	}
	if json.Unmarshal(a.Input, &in) == nil && in.Command != nil {
		fmt.Fprintf(&b, "Command: %s\n", quote(*in.Command, maxCommand))
		if rest := inputWithoutCommand(a.Input); rest != "" {
			fmt.Fprintf(&b, "With: %s\n", quote(rest, maxReason))
		}
	} else if len(a.Input) > 0 {
		fmt.Fprintf(&b, "Input: %s\n", quote(string(a.Input), maxCommand))
	}
	if a.Reason != "" {
		fmt.Fprintf(&b, "Reason: %s\n", quote(a.Reason, maxReason))
	}
	if a.Rule != "" {
		fmt.Fprintf(&b, "Rule: %s\n", quote(a.Rule, maxName))
	}
	fmt.Fprintf(&b, "Caller: %s\nApproval: %s", quote(a.Caller, maxName), quote(a.ID, maxName))
	return b.String()
}

// inputWithoutCommand returns an input without its command.
func inputWithoutCommand(input json.RawMessage) string {
	var m map[string]json.RawMessage
	if json.Unmarshal(input, &m) != nil {
		return ""
	}
	delete(m, "command")
	if len(m) == 0 {
		return ""
	}
	b, err := json.Marshal(m)
	if err != nil {
		return ""
	}
	return string(b)
}
