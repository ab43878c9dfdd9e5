package profile

import (
	"encoding/json"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
)

// Profile is a set of tools with their rules, as in its file.
type Profile struct {
	Name        string `json:"name"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Extends names a profile that provides the tools, rules and settings missing here.
	Extends string `json:"extends,omitempty"`

	Tools []Tool `json:"tools,omitempty"`
	// Policy decides on commands.
	Policy policy.Rules `json:"policy,omitzero"`
	// Approvals are tried in order. A call without a match needs no approval.
	Approvals []approval.Rule `json:"approvals,omitempty"`
	// RaiseTrust is the action for a call that needs more trust than its caller has: "deny" (the
	// default) or "prompt".
	RaiseTrust approval.Action `json:"raise_trust,omitempty"`
	// Paths maps directories in the input of callers to directories of the sandbox. Directories
	// below the home directory also exist in the sandbox under their original name.
	Paths map[string]string `json:"paths,omitempty"`
	// Workspace selects the workspace of a call that names none: "none" (the default), "caller"
	// (one per caller) or "job" (one per job, named job_<uuid>).
	Workspace string `json:"workspace,omitempty"`
	// Network of new sandboxes is "none" (the default) or "bridge", which allows all public egress
	// through the gateway. Neither adds a network interface.
	Network string `json:"network,omitempty"`
	// TraceParent gives commands the variable TRACEPARENT of their call's trace, if the service has
	// traces.
	TraceParent bool `json:"traceparent,omitempty"`
	// Warnings lists settings that could not be applied as written.
	Warnings []string `json:"-"`
}

// Tool is a built-in tool under a name of the profile, with its own input and results.
type Tool struct {
	Name string `json:"name"`
	// Base is the built-in tool; the default is Name.
	Base        string `json:"base,omitempty"`
	Title       string `json:"title,omitempty"`
	Description string `json:"description,omitempty"`
	// Disabled tools exist but calls are refused.
	Disabled bool `json:"disabled,omitempty"`
	// Trust and Effects override those of the built-in tool.
	Trust   *int          `json:"trust,omitempty"`
	Effects []tool.Effect `json:"effects,omitempty"`

	// Input is the JSON Schema of the input, Output that of Result. The defaults are those of the
	// built-in tool.
	Input  json.RawMessage `json:"input,omitempty"`
	Output json.RawMessage `json:"output,omitempty"`
	// Bases is a CEL expression over input that gives the name of the built-in tool, for tools with
	// several operations.
	Bases string `json:"bases,omitempty"`
	// Arguments is a CEL expression over input and call that gives the input of the built-in tool.
	Arguments string `json:"arguments,omitempty"`
	// Result is a CEL expression over r (the output of the built-in tool), input, call and end (see
	// End) that gives the output for callers. It is also evaluated for refusals and other endings
	// without output; r is null then.
	Result string `json:"result,omitempty"`
	// Text is a text/template over .r, .input, .call, .end and .result that gives the text for
	// models. The default is the output as JSON, or the message of the ending if there is no
	// output.
	Text string `json:"text,omitempty"`
	// Errors defines which endings are errors of the tool. Keys are endings or ending:class, such
	// as "policy_denied:never"; the more specific key wins.
	Errors map[string]Error `json:"errors,omitempty"`

	Caps Caps           `json:"caps,omitzero"`
	Rate *approval.Rate `json:"rate,omitempty"`
	// Policy replaces the policy of the profile for this tool.
	Policy *policy.Rules `json:"policy,omitempty"`
}

// Error is the form of an error. Type is its name for clients. Message is a text/template with the
// data of Tool.Text.
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

// Endings for End.Ending and the keys of Tool.Errors, in addition to those of commands ("exited",
// "timeout" and so on).
const (
	EndingOK       = "ok"
	EndingFailed   = "failed"          // the tool failed, such as for a missing file
	EndingPolicy   = "policy_denied"   // a rule denied the call
	EndingApproval = "approval_denied" // no approval was given
	EndingInvalid  = "invalid"         // the input does not match the schema; reported by Prepare
)

// Classes of those endings. policy_denied also has the classes of package policy, and invalid has
// the problems of an InputError.
const (
	ClassNever    = "never" // policy_denied by a rule with Never
	ClassTrust    = "trust"
	ClassDisabled = "disabled"
	ClassRate     = "rate"
	ClassQuota    = "quota"

	ClassRefused = "refused" // an approver refused
	ClassExpired = "expired" // no approver answered in time
	ClassBudget  = "budget"  // the budget is used up
	ClassRuled   = "rule"    // an approval rule denied the call

	ClassNotFound   = "not_found"
	ClassExists     = "exists"
	ClassPermission = "permission"
	ClassInvalid    = "invalid"
	ClassLimit      = "limit"
	ClassNetwork    = "network" // an external host did not answer
)

// End describes how a call ended, for expressions and templates.
type End struct {
	Ending  string `json:"ending"`
	Refused bool   `json:"refused"`
	// Class is the class of the refusal or failure, such as "denylist", "trust" or "not_found".
	Class      string  `json:"class"`
	Rule       string  `json:"rule"`
	Never      bool    `json:"never"`
	Message    string  `json:"message"`
	Program    string  `json:"program"`
	ExitCode   int     `json:"exit_code"`
	Signal     int     `json:"signal"`
	DurationMS float64 `json:"duration_ms"`
	TimeoutMS  int64   `json:"timeout_ms"`
	// Detail describes an ending that is not caused by a rule.
	Detail string `json:"detail"`
	// RetryAfterMS is set for rate limits.
	RetryAfterMS int64 `json:"retry_after_ms"`
}

// Caps bounds the calls of a tool. Zero values use the limits of the service.
type Caps struct {
	TimeoutMS    int64    `json:"timeout_ms,omitempty"`
	MaxTimeoutMS int64    `json:"max_timeout_ms,omitempty"`
	Clamp        bool     `json:"clamp,omitempty"`
	Output       tool.Cut `json:"output,omitzero"`
	MaxFile      int64    `json:"max_file_bytes,omitempty"`
	Dirs         []string `json:"dirs,omitempty"`
	ReadOnly     bool     `json:"read_only,omitempty"`
	NoFollow     bool     `json:"no_follow,omitempty"`
	// MemoryBytes and CPUs bound the resources of one call.
	MemoryBytes int64   `json:"memory_bytes,omitempty"`
	CPUs        float64 `json:"cpus,omitempty"`
	// Web bounds web tools, within the limits of the service.
	Web *reach.Caps `json:"web,omitempty"`
}
