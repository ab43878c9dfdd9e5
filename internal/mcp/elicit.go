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
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// Bounds of what a question shows, in runes.
const (
	maxCommand = 2000
	maxReason  = 500
	maxName    = 100
)

// answerTime bounds the passing on of an answer.
const answerTime = 30 * time.Second

// form is what the user fills in.
var form = json.RawMessage(`{
  "type": "object",
  "properties": {
    "decision": {"type": "string", "title": "Decision", "description": "Whether this may run", "enum": ["approve", "deny"]},
    "scope": {"type": "string", "title": "For", "description": "call: this once; session: also what the same rule asks about later in this session", "enum": ["call", "session"], "default": "call"}
  },
  "required": ["decision"]
}`)

// elicit asks the session's user about an approval, and answers it. Without an
// answer the question stays open for others.
func (c *underway) elicit(a v1.Approval) {
	if !c.mayElicit() {
		return
	}
	res, err := c.client.Elicit(c.ctx, &mcp.ElicitParams{Mode: "form", Message: question(a), RequestedSchema: form})
	if err != nil {
		if c.ctx.Err() == nil {
			c.s.log.Warn("approval not elicited", "approval", a.ID, "error", err)
		}
		return
	}
	answer, ok := decision(res)
	if !ok || c.ctx.Err() != nil {
		return // dismissed: no decision. Or another was quicker.
	}
	client := c.clientName()
	// The call may end meanwhile; what the user said still counts.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(c.ctx), answerTime, errors.New("the approval took no answer in time"))
	defer cancel()
	_, err = c.s.engine.AnswerApproval(ctx, engine.Principal{
		Caller: "elicitation:" + client, Token: c.access.Principal.Token, Trust: tool.TrustMax, Operator: true, Via: "mcp",
	}, a.ID, answer)
	if err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsConflict(err) { // those: it was answered already
		c.s.log.Warn("elicited answer not taken", "approval", a.ID, "error", errors.Join(err, context.Cause(ctx)))
	}
}

// mayElicit says whether the client can ask its user, and may.
func (c *underway) mayElicit() bool {
	o := c.s.opts
	if o.NoElicit || !o.ElicitAll && !c.access.Principal.Operator {
		return false
	}
	p := c.client.InitializeParams()
	if p == nil || p.Capabilities == nil || p.Capabilities.Elicitation == nil {
		return false
	}
	e := p.Capabilities.Elicitation
	return e.Form != nil || e.URL == nil // neither is a form in older clients
}

// clientName is what the client calls itself, as far as a name goes.
func (c *underway) clientName() string {
	n := ""
	if p := c.client.InitializeParams(); p != nil && p.ClientInfo != nil {
		n, _ = bound(p.ClientInfo.Name, maxName)
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

// decision reads what the user filled in. Declining is a denial; closing the
// question is none.
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

// question is what the user reads. Everything in it that a model or a sandbox
// wrote is bounded, and quoted so that it cannot look like our own words.
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
		if rest := others(a.Input); rest != "" {
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

// others is an input without its command.
func others(input json.RawMessage) string {
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
