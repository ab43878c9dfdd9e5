package governed

import (
	"context"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/governed/present"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// profileOf returns the name of the caller's profile.
func (s *Service) profileOf(p caller.Principal) string {
	if p.Profile != "" {
		return p.Profile
	}
	_, fallback := s.opts.Config.profiles()
	return fallback
}

// Direct returns PermissionDenied to callers who may only use tools. It guards requests that run or
// write without a tool, which no policy, approval or record covers. Operators may, and callers of
// the highest trust with the default profile. what completes "may not".
func (s *Service) Direct(p caller.Principal, what string) error {
	if p.Operator || s.opts.Config == nil {
		return nil
	}
	if name := s.profileOf(p); name != profile.Default {
		return usererror.Errorf(
			errdefs.ErrPermissionDenied,
			"callers of profile %s may not %s: use its tools (POST /v1/tools/NAME/call)",
			name,
			what,
		)
	}
	if p.Trust < tool.TrustMax {
		return usererror.Errorf(
			errdefs.ErrPermissionDenied,
			"only callers of trust level %d may %s, and this one has %d: use tools (POST /v1/tools/NAME/call)",
			tool.TrustMax,
			what,
			p.Trust,
		)
	}
	return nil
}

// Profiles lists the profiles. A caller who is not an operator sees only their own.
func (s *Service) Profiles(_ context.Context, principal caller.Principal) ([]v1.Profile, error) {
	g := s.opts.Config
	if g == nil {
		return nil, ErrUngoverned
	}
	out := []v1.Profile{}
	set, _ := g.profiles()
	for _, p := range set.List() {
		if principal.Operator || p.Profile.Name == s.profileOf(principal) {
			out = append(out, presentProfile(p))
		}
	}
	return out, nil
}

func presentProfile(p *profile.Compiled) v1.Profile {
	names := make([]string, 0, len(p.Tools()))
	for _, t := range p.Tools() {
		names = append(names, t.Name())
	}
	return v1.Profile{
		Name: p.Profile.Name, Title: p.Profile.Title, Description: p.Profile.Description,
		Tools: names, Source: p.Source, Warnings: p.Profile.Warnings,
	}
}

// RequestedProfile returns the profile with this name, or the caller's if name is empty. Only
// operators may name another profile.
func (s *Service) RequestedProfile(principal caller.Principal, name string) (*profile.Compiled, error) {
	g := s.opts.Config
	switch {
	case g == nil:
		return nil, ErrUngoverned
	case name == "":
		name = s.profileOf(principal)
	case !principal.Operator && name != s.profileOf(principal):
		return nil, &usererror.InvalidError{
			Field:   "profile",
			Message: "is not yours to choose: leave it out",
			Class:   errdefs.ErrPermissionDenied,
		}
	}
	p, err := g.profile(name)
	if err != nil {
		return nil, &usererror.InvalidError{Field: "profile", Message: "cannot be used: " + err.Error(), Class: err}
	}
	return p, nil
}

// CheckProfile returns an *InvalidError if a profile does not exist. If tools are disabled, every
// name is accepted.
func (s *Service) CheckProfile(name string) error {
	if s.opts.Config == nil {
		return nil
	}
	_, err := s.RequestedProfile(caller.Local(""), name)
	return err
}

// Tools lists the tools of the caller's profile. Operators may name another profile.
func (s *Service) Tools(_ context.Context, principal caller.Principal, name string) ([]v1.Tool, error) {
	p, err := s.RequestedProfile(principal, name)
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
		Name: t.Name(), Title: t.Title(), Description: t.Description(), Input: t.Input(), Output: t.Output(),
		Trust: t.Trust(), Enabled: t.Enabled(), Cacheable: t.Cacheable(),
		ReadOnly: t.ReadOnly(), Destructive: t.Destructive(), Idempotent: t.Idempotent(),
		Caps: v1.ToolCaps{
			TimeoutMS: caps.Timeout.Milliseconds(), MaxTimeoutMS: caps.MaxTimeout.Milliseconds(),
			Output: caps.Output.Limit, OutputUnit: caps.Output.Unit,
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

// CallOutput reads the kept output of an earlier call of the caller, from an absolute offset.
func (s *Service) CallOutput(
	_ context.Context,
	p caller.Principal,
	id string,
	r core.OutputRequest,
) (v1.Output, error) {
	if s.outputs == nil {
		return v1.Output{}, ErrUngoverned
	}
	return s.outputs.read(p.Caller, id, r)
}

// CheckPolicy returns the verdict of a profile's policy on a command. Nothing runs, and nothing is
// recorded.
func (s *Service) CheckPolicy(_ context.Context, principal caller.Principal, r v1.PolicyCheck) (v1.Verdict, error) {
	p, err := s.RequestedProfile(principal, r.Profile)
	if err != nil {
		return v1.Verdict{}, err
	}
	v, err := p.Check(r.Tool, r.Command, r.Argv)
	if err != nil {
		return v1.Verdict{}, err
	}
	return present.Verdict(v), nil
}
