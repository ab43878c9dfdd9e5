package profile

import (
	"encoding/json"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// Profile is a set of tools with their rules, as it stands in its file. It is
// data: the names and shapes of another system over the built-in tools.
type Profile struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Extends names a profile whose tools, rules and settings stand where this
	// one says nothing.
	Extends string `json:"extends,omitempty"`

	Tools []Tool `json:"tools,omitempty"`
	// Policy decides on commands.
	Policy policy.Rules `json:"policy,omitzero"`
	// Approvals are tried in order; a call that none matches needs none.
	Approvals []approval.Rule `json:"approvals,omitempty"`
	// RaiseTrust says what becomes of a call that asks for more trust than its
	// caller has: "deny" (the default) or "prompt".
	RaiseTrust approval.Action `json:"raise_trust,omitempty"`
	// Paths maps folders that callers name to folders of the sandbox. Folders
	// below the home directory exist there by these names too.
	Paths map[string]string `json:"paths,omitempty"`
	// Workspace says which workspace a call gets that names none: "none" (the
	// default), "caller" (one for each caller) or "job" (one for each job,
	// named job_<uuid>).
	Workspace string `json:"workspace,omitempty"`
	// Network of the sandboxes that calls get is "none" (the default), or
	// "bridge": all public egress through the gateway. The interface is none in
	// both.
	Network string `json:"network,omitempty"`
	// Warnings are what could not be taken as it was meant.
	Warnings []string `json:"-"`
}

// Tool is a tool of a profile: a built-in one under a name, with a shape.
type Tool struct {
	Name string `json:"name"`
	// Base is the built-in tool; the same name unless set.
	Base        string `json:"base,omitempty"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Disabled tools are known and refused.
	Disabled bool `json:"disabled,omitempty"`
	// Trust and Effects stand over the built-in tool's.
	Trust   *int          `json:"trust,omitempty"`
	Effects []tool.Effect `json:"effects,omitempty"`

	// Input is the JSON Schema of what callers send, Output that of Result;
	// absent, the built-in tool's.
	Input  json.RawMessage `json:"input,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`
	// Bases chooses the built-in tool by the input, for tools with operations:
	// a CEL expression over input that gives a name.
	Bases string `json:"bases,omitempty"`
	// Arguments is a CEL expression over input and call that gives the built-in
	// tool's input.
	Arguments string `json:"arguments,omitempty"`
	// Result is a CEL expression over r (the built-in tool's output), input,
	// call and end (see End) that gives what callers get. It is evaluated for
	// refusals and other endings without an output too, with r null.
	Result string `json:"result,omitempty"`
	// Text is a text/template over the same names (.r .input .call .end .result)
	// that gives the form for models; absent, it is the output as JSON, or of a
	// call without one what is said of its ending.
	Text string `json:"text,omitempty"`
	// Errors say which endings are errors of the tool, and how they are called
	// and worded. Keys are endings, or "policy_denied:never" and the like
	// (ending:class), the more exact one first.
	Errors map[string]Error `json:"errors,omitempty"`

	Caps Caps           `json:"caps,omitzero"`
	Rate *approval.Rate `json:"rate,omitempty"`
	// Policy replaces the profile's for this tool.
	Policy *policy.Rules `json:"policy,omitempty"`
}

// Error is how a tool's error looks: Type is the source's name of it, Message a
// text/template over the names of Tool.Text.
type Error struct {
	Type    string `json:"type"`
	Message string `json:"message,omitempty"`
}

// Values of Profile.Network.
const (
	NetworkNone   = "none"
	NetworkBridge = "bridge"
)

// Values of Profile.Workspace.
const (
	WorkspaceNone   = "none"
	WorkspaceCaller = "caller"
	WorkspaceJob    = "job"
)

// Endings of calls beside those of commands ("exited", "timeout" and so on),
// for End.Ending and the keys of Tool.Errors.
const (
	EndingOK       = "ok"
	EndingFailed   = "failed"          // the tool itself says no: a file that is not there
	EndingPolicy   = "policy_denied"   // a rule says no
	EndingApproval = "approval_denied" // nobody said yes
	EndingInvalid  = "invalid"         // the input is not of the schema; Prepare says so
)

// Classes of those endings, beside those of package policy for policy_denied
// and the problems of an InputError for invalid.
const (
	ClassNever    = "never" // of policy_denied, by a rule that is marked so
	ClassTrust    = "trust"
	ClassDisabled = "disabled"
	ClassRate     = "rate"
	ClassQuota    = "quota"

	ClassRefused = "refused" // somebody said no
	ClassExpired = "expired" // nobody answered
	ClassBudget  = "budget"  // it is used up
	ClassRuled   = "rule"    // an approval rule denies

	ClassNotFound   = "not_found"
	ClassExists     = "exists"
	ClassPermission = "permission"
	ClassInvalid    = "invalid"
	ClassLimit      = "limit"
	ClassNetwork    = "network" // what was asked outside gave no answer
)

// End is how a call ended, for expressions and templates: its ending, whether
// that is a refusal (and by which rule), and what it took.
type End struct {
	Ending  string `json:"ending"`
	Refused bool   `json:"refused"`
	// Class is of the refusal or the failure, as "denylist", "trust" or
	// "not_found".
	Class      string  `json:"class"`
	Rule       string  `json:"rule"`
	Never      bool    `json:"never"`
	Message    string  `json:"message"`
	Program    string  `json:"program"`
	ExitCode   int     `json:"exit_code"`
	Signal     int     `json:"signal"`
	DurationMS float64 `json:"duration_ms"`
	TimeoutMS  int64   `json:"timeout_ms"`
	// Detail says what happened where no rule was at work.
	Detail string `json:"detail"`
	// RetryAfterMS is set for a rate limit.
	RetryAfterMS int64 `json:"retry_after_ms"`
}

// Caps bound a tool's calls. Zero takes the service's.
type Caps struct {
	TimeoutMS    int64    `json:"timeout_ms,omitempty"`
	MaxTimeoutMS int64    `json:"max_timeout_ms,omitempty"`
	Clamp        bool     `json:"clamp,omitempty"`
	Output       tool.Cut `json:"output,omitzero"`
	MaxFile      int64    `json:"max_file_bytes,omitempty"`
	Dirs         []string `json:"dirs,omitempty"`
	ReadOnly     bool     `json:"read_only,omitempty"`
	NoFollow     bool     `json:"no_follow,omitempty"`
	// MemoryBytes and CPUs bound what one call may use of the sandbox.
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	// Web bounds tools of the web, below what the service allows.
	Web *tool.WebCaps `json:"web,omitempty"`
}
