package governed

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// refusal is the error of a call that is refused. It becomes the call's result.
type refusal struct {
	ending  string
	verdict policy.Verdict
	again   time.Duration // when a retry may be allowed; 0 if waiting does not help
}

// Error implements error with the verdict's message.
func (r *refusal) Error() string { return r.verdict.Message }

// find looks up the profile and the tool.
func (t *transaction) find() (err error) {
	if t.r.Profile != "" && !t.principal.Operator && t.r.Profile != t.s.profileOf(t.principal) {
		return &usererror.InvalidError{
			Field:   "profile",
			Message: "is not yours to choose: leave it out",
			Class:   errdefs.ErrPermissionDenied,
		}
	}
	if t.profile, err = t.g.profile(t.profileName()); err != nil {
		return &usererror.InvalidError{Field: "profile", Message: "cannot be used: " + err.Error(), Class: err}
	}
	if t.tool, err = t.profile.Tool(t.name); err != nil {
		return err
	}
	t.name = t.tool.Name()
	return nil
}

func (t *transaction) profileName() string {
	if t.r.Profile != "" {
		return t.r.Profile
	}
	return t.s.profileOf(t.principal)
}

// admit makes every decision that needs no approval: whether this caller may use the tool, whether
// the input is valid, and the policy's verdict on the command. It returns the reasons to ask for
// approval.
func (t *transaction) admit(ctx context.Context) ([]approval.Reason, error) {
	if !t.tool.Enabled() {
		return nil, t.refuse(
			policy.Verdict{
				Action:  policy.Deny,
				Class:   profile.ClassDisabled,
				Rule:    "disabled:" + t.name,
				Message: fmt.Sprintf("Tool %s is disabled", t.name),
			},
		)
	}
	var questions []approval.Reason
	if need := t.tool.Trust(); t.principal.Trust < need {
		v := policy.Verdict{
			Action: policy.Deny, Class: profile.ClassTrust, Rule: fmt.Sprintf("trust:%d", need),
			Message: fmt.Sprintf("Tool %s needs trust level %d, and this caller has %d", t.name, need, t.principal.Trust),
		}
		if !t.r.RaiseTrust || t.profile.Profile.RaiseTrust != approval.Prompt {
			return nil, t.refuse(v)
		}
		questions = append(questions, approval.Reason{Kind: approval.KindTrust, Rule: v.Rule, Message: v.Message})
	}
	v, err := t.prepare(ctx)
	if err != nil {
		return nil, err
	}
	if v != nil && v.Action == policy.Ask {
		questions = append(questions, approval.Reason{Kind: approval.KindCall, Rule: v.Rule, Message: v.Message})
	}
	return questions, nil
}

// prepare validates the input and asks the policy. It runs again for an input that an approver
// changed: approval does not override a denial.
func (t *transaction) prepare(ctx context.Context) (*policy.Verdict, error) {
	if t.inputErr != nil {
		return nil, t.inputErr
	}
	shaped, err := t.tool.Prepare(ctx, t.input, t.expressionVars())
	if err != nil {
		return nil, inputErrorForCaller(err)
	}
	t.shaped = shaped
	if t.ready, err = shaped.Base.Check(shaped.Input); err != nil {
		return nil, err
	}
	if err := t.validatePlacement(); err != nil {
		return nil, err
	}
	v := t.decide()
	if v == nil {
		return nil, nil
	}
	if t.s != nil && t.s.opts.OnVerdict != nil { // not while an approver's input is checked
		t.s.opts.OnVerdict(t.profile.Profile.Name, v.Action)
	}
	t.verdict = v
	if v.Action == policy.Deny {
		return nil, t.refuse(*v)
	}
	return v, nil
}

// maxToolInput bounds an input. A file of the maximum size fits as base64.
const maxToolInput = 16 << 20

// decide returns the policy's verdict on the call's command, or nil without a command or a policy.
func (t *transaction) decide() *policy.Verdict {
	c := t.ready.Command
	p := t.tool.Policy()
	switch {
	case c == nil || p == nil:
		return nil
	case c.Shell != "":
		v := p.Command(c.Shell)
		return &v
	case c.Argv != nil:
		v := p.Argv(c.Argv)
		return &v
	}
	argv, v := p.Line(c.Line)
	c.Argv = argv
	return &v
}

func (t *transaction) refuse(v policy.Verdict) error { return t.refuseFor(v, 0) }

func (t *transaction) refuseFor(v policy.Verdict, again time.Duration) error {
	if v.Message == "" {
		v.Message = "refused by rule " + v.Rule
	}
	t.verdict = &v
	return &refusal{ending: policyDenied, verdict: v, again: again}
}

// expressionVars returns the variables of the profile's expressions.
func (t *transaction) expressionVars() map[string]any {
	return map[string]any{
		"id": t.id, "caller": t.principal.Caller, "trust": t.principal.Trust, "tool": t.name, "profile": t.profile.Profile.Name,
		"session": t.r.Session, "sandbox": t.r.Sandbox, "workspace": t.r.Workspace, "job": t.r.Job,
	}
}

// validatePlacement checks the fields that say where the call runs.
func (t *transaction) validatePlacement() error {
	r := t.r
	switch {
	case r.Sandbox != "" && (r.Session != "" || r.Job != ""):
		return usererror.Invalid("sandbox", "and session or job are both set: use one of them")
	case r.Sandbox != "" && (r.Workspace != "" || r.Template != "" || r.ReadOnly):
		return usererror.Invalid("sandbox", "is already leased: workspace, template and read_only are for new leases")
	case r.Job != "" && r.Workspace != "":
		return usererror.Invalid("job", "and workspace are both set: a job has its own workspace")
	case r.Job != "" && !isUUID(r.Job):
		return usererror.Invalid("job", "is not a uuid")
	case r.Amount != nil && *r.Amount < 0:
		return usererror.Invalid("amount", "is negative: give 0 or more")
	}
	if r.Session != "" {
		return core.ValidateSession(r.Session)
	}
	return nil
}

func isUUID(s string) bool {
	u, err := uuid.Parse(s)
	return err == nil && u.String() == s
}
