package engine

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Watch observes a tool call in progress. Each function may be nil. They are called by one
// goroutine at a time and must not block.
type Watch struct {
	// Asked is called when the call waits for this approval request.
	Asked func(v1.Approval)
	// Started is called with the sandbox in which the call runs.
	Started func(sandbox string)
	// Output is called with output as the command writes it. p is valid only during the call.
	Output func(stream string, p []byte)
}

// AuditFilter selects audit records. The zero value selects all, newest last.
type AuditFilter struct {
	Caller, Action, Verdict, Ending, Call, Sandbox string
	Since, Until                                   time.Time
	// After is the sequence number to start after. Limit is the maximum number of records; 0 means
	// 1000 for lists and all for exports.
	After int64
	Limit int
	// Newest selects the last Limit records instead of the first.
	Newest bool
}

// Governance configures tool calls. The caller of Open opens and closes its members.
type Governance struct {
	Profiles *profile.Set
	// Default is the profile of callers that have none.
	Default  string
	Gate     *approval.Gate
	Limiter  *approval.Limiter
	Audit    *audit.Log
	Redactor *audit.Redactor
	// Outputs is the directory for outputs that exceed an answer.
	Outputs string
	// Compat configures ShellCompat. If it is nil, ShellCompat is disabled.
	Compat *Compat
}

// Compat maps the requests of the readonly system's clients, which send no token.
type Compat struct {
	Caller     string
	Workspaces map[string]string // by the path that clients send
}

var errUngoverned = fmt.Errorf("tools are not configured on this service: %w", errdefs.ErrNotImplemented)

func (g *Governance) profile(name string) (*profile.Compiled, error) { return g.Profiles.Get(name) }

// profileOf returns the name of the caller's profile.
func (e *Engine) profileOf(p caller.Principal) string {
	if p.Profile != "" {
		return p.Profile
	}
	return e.opts.Governance.Default
}

// Direct returns PermissionDenied to callers who may only use tools. It guards requests that run or
// write without a tool, which no policy, approval or record covers. Operators may, and callers of
// the highest trust with the default profile. what completes "may not".
func (e *Engine) Direct(p caller.Principal, what string) error {
	if p.Operator || e.opts.Governance == nil {
		return nil
	}
	if name := e.profileOf(p); name != profile.Default {
		return usererror.Errorf(errdefs.ErrPermissionDenied, "callers of profile %s may not %s: use its tools (POST /v1/tools/NAME/call)", name, what)
	}
	if p.Trust < tool.TrustMax {
		return usererror.Errorf(errdefs.ErrPermissionDenied, "only callers of trust level %d may %s, and this one has %d: use tools (POST /v1/tools/NAME/call)", tool.TrustMax, what, p.Trust)
	}
	return nil
}

// Profiles lists the profiles. A caller who is not an operator sees only their own.
func (e *Engine) Profiles(_ context.Context, principal caller.Principal) ([]v1.Profile, error) {
	g := e.opts.Governance
	if g == nil {
		return nil, errUngoverned
	}
	out := []v1.Profile{}
	for _, p := range g.Profiles.List() {
		if principal.Operator || p.Profile.Name == e.profileOf(principal) {
			out = append(out, presentProfile(p))
		}
	}
	return out, nil
}

func presentProfile(p *profile.Compiled) v1.Profile {
	names := []string{}
	for _, t := range p.Tools() {
		names = append(names, t.Name())
	}
	return v1.Profile{
		Name: p.Profile.Name, Title: p.Profile.Title, Description: p.Profile.Description, Tools: names, Source: p.Source, Warnings: p.Profile.Warnings,
	}
}

// requestedProfile returns the profile with this name, or the caller's if name is empty. Only
// operators may name another profile.
func (e *Engine) requestedProfile(principal caller.Principal, name string) (*profile.Compiled, error) {
	g := e.opts.Governance
	switch {
	case g == nil:
		return nil, errUngoverned
	case name == "":
		name = e.profileOf(principal)
	case !principal.Operator && name != e.profileOf(principal):
		return nil, &usererror.InvalidError{Field: "profile", Message: "is not yours to choose: leave it out", Class: errdefs.ErrPermissionDenied}
	}
	p, err := g.profile(name)
	if err != nil {
		return nil, &usererror.InvalidError{Field: "profile", Message: "cannot be used: " + err.Error(), Class: err}
	}
	return p, nil
}

// Tools lists the tools of the caller's profile. Operators may name another profile.
func (e *Engine) Tools(_ context.Context, principal caller.Principal, name string) ([]v1.Tool, error) {
	p, err := e.requestedProfile(principal, name)
	if err != nil {
		return nil, err
	}
	out := []v1.Tool{}
	for _, t := range p.Tools() {
		out = append(out, presentTool(t))
	}
	return out, nil
}

func presentTool(t *profile.CompiledTool) v1.Tool {
	caps := t.Caps()
	out := v1.Tool{
		Name: t.Name(), Title: t.Title(), Description: t.Description(), Input: t.Input(), Output: t.Output(), Trust: t.Trust(), Enabled: t.Enabled(),
		Cacheable: t.Cacheable(), ReadOnly: t.ReadOnly(), Destructive: t.Destructive(), Idempotent: t.Idempotent(),
		Caps: v1.ToolCaps{
			TimeoutMS: caps.Timeout.Milliseconds(), MaxTimeoutMS: caps.MaxTimeout.Milliseconds(), Output: caps.Output.Limit, OutputUnit: caps.Output.Unit,
			MemoryBytes: caps.MemoryBytes, CPUs: caps.CPUs,
		},
	}
	for _, effect := range t.Effects() {
		out.Effects = append(out.Effects, string(effect))
	}
	if r := t.Rate(); r != nil {
		out.Caps.MaxCalls, out.Caps.WindowMS = r.MaxCalls, r.WindowMS
	}
	return out
}

// RefuseCall records a call that could not be decoded and returns cause. The record holds at most
// audit.MaxInput bytes of a JSON body, its size and its SHA-256; of any other body only the latter
// two. If the caller's call quota or share of the log is used up, the call is only counted.
func (e *Engine) RefuseCall(ctx context.Context, p caller.Principal, name string, body []byte, cause error) error {
	g := e.opts.Governance
	if g == nil {
		return cause
	}
	r := e.refusal(p, name, cause)
	if rule, no := limitRule(e.checkExhausted(p)); no {
		r.Action, r.Input, r.Verdict, r.Rule = unknownTool, body, string(policy.Deny), rule
		e.recordRefused(ctx, r)
		return cause
	}
	switch {
	case json.Valid(body):
		r.Input = body
		if show, err := g.hideRefused(ctx, p.Caller, body); err != nil {
			replaceInputWithHash(&r)
		} else {
			defer show()
		}
	case len(body) > 0:
		sum := sha256.Sum256(body)
		r.InputBytes, r.InputHash = len(body), hex.EncodeToString(sum[:])
	}
	return e.recordRefusal(ctx, r, cause)
}

// CountRefusal counts a refused call of a client that has no share of the log or gets too many
// refusals. The log has two records a minute for each action, at most. action must not be the
// client's choice.
func (e *Engine) CountRefusal(ctx context.Context, p caller.Principal, action string, cause error) {
	if e.opts.Governance == nil {
		return
	}
	r := e.refusal(p, action, cause)
	r.Verdict, r.Rule = string(policy.Deny), "refused"
	e.recordRefused(ctx, r)
}

// RefuseBody records a call whose body was not read to its end and returns cause. size is the
// number of bytes read and sum their SHA-256 in hex.
func (e *Engine) RefuseBody(ctx context.Context, p caller.Principal, name string, size int, sum string, cause error) error {
	if e.opts.Governance == nil {
		return cause
	}
	r := e.refusal(p, name, cause)
	if rule, no := limitRule(e.checkExhausted(p)); no {
		r.Action, r.Verdict, r.Rule = unknownTool, string(policy.Deny), rule
		e.recordRefused(ctx, r)
		return cause
	}
	r.InputBytes, r.InputHash = size, sum
	return e.recordRefusal(ctx, r, cause)
}

// refusal returns the record of a refused call, without its input. The log redacts and bounds its error.
func (e *Engine) refusal(p caller.Principal, name string, cause error) audit.Record {
	return audit.Record{
		Kind: audit.KindEvent, Caller: p.Caller, Token: p.Token, Profile: e.profileOf(p), Trust: p.Trust, Via: p.Via,
		Action: audit.TruncateName(name), Ending: endedFailed, Error: cause.Error(), Uncharged: p.Operator,
	}
}

// recordRefusal writes the record and returns cause, joined with the error if it could not be written.
func (e *Engine) recordRefusal(ctx context.Context, r audit.Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := e.opts.Governance.Audit.Event(ctx, r); err != nil {
		return errors.Join(cause, fmt.Errorf("and the call was not recorded: %w", err))
	}
	return cause
}

// hideRefused hides the secrets of an input, or of a request that holds one, until show is called.
func (g *Governance) hideRefused(ctx context.Context, caller string, body []byte) (show func(), err error) {
	var request struct {
		Input json.RawMessage `json:"input"`
	}
	values, err := secretsOf(body)
	if err == nil && json.Unmarshal(body, &request) == nil {
		var more []string
		more, err = secretsOf(request.Input)
		values = append(values, more...)
	}
	if err != nil {
		return nil, err
	}
	return g.hide(ctx, caller, values)
}

// CallOutput reads the kept output of an earlier call of the caller, from an absolute offset.
func (e *Engine) CallOutput(_ context.Context, p caller.Principal, id string, r core.OutputRequest) (v1.Output, error) {
	if e.outputs == nil {
		return v1.Output{}, errUngoverned
	}
	return e.outputs.read(p.Caller, id, r)
}

// CheckPolicy returns the verdict of a profile's policy on a command. Nothing runs, and nothing is
// recorded.
func (e *Engine) CheckPolicy(_ context.Context, principal caller.Principal, r v1.PolicyCheck) (v1.Verdict, error) {
	p, err := e.requestedProfile(principal, r.Profile)
	if err != nil {
		return v1.Verdict{}, err
	}
	v, err := p.Check(r.Tool, r.Command, r.Argv)
	if err != nil {
		return v1.Verdict{}, err
	}
	return presentVerdict(v), nil
}

func presentVerdict(v policy.Verdict) v1.Verdict {
	out := v1.Verdict{Verdict: string(v.Action), Rule: v.Rule, Class: v.Class, HardDeny: v.HardDeny, Message: v.Message, Program: v.Program}
	if v.At != nil {
		at := v1.Position(*v.At)
		out.At = &at
	}
	return out
}
