package governed

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/internal/audit"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
)

// RefuseCall records a call that could not be decoded and returns cause. The record holds at most
// audit.MaxInput bytes of a JSON body, its size and its SHA-256; of any other body only the latter
// two. If the caller's call quota or share of the log is used up, the call is only counted.
func (s *Service) RefuseCall(ctx context.Context, p caller.Principal, name string, body []byte, cause error) error {
	g := s.opts.Config
	if g == nil {
		return cause
	}
	r := s.refusal(p, name, cause)
	r.Trace = tracing.ID(ctx)
	if rule, no := limitRule(s.checkExhausted(p)); no {
		r.Action, r.Input, r.Verdict, r.Rule = UnknownTool, body, string(policy.Deny), rule
		s.recordRefused(ctx, r)
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
	return s.recordRefusal(ctx, r, cause)
}

// CountRefusal counts a refused call of a client that has no share of the log or gets too many
// refusals. The log has two records a minute for each action, at most. action must not be the
// client's choice.
func (s *Service) CountRefusal(ctx context.Context, p caller.Principal, action string, cause error) {
	if s.opts.Config == nil {
		return
	}
	r := s.refusal(p, action, cause)
	r.Verdict, r.Rule = string(policy.Deny), "refused"
	s.recordRefused(ctx, r)
}

// RefuseBody records a call whose body was not read to its end and returns cause. size is the
// number of bytes read and sum their SHA-256 in hex.
func (s *Service) RefuseBody(
	ctx context.Context,
	p caller.Principal,
	name string,
	size int,
	sum string,
	cause error,
) error {
	if s.opts.Config == nil {
		return cause
	}
	r := s.refusal(p, name, cause)
	if rule, no := limitRule(s.checkExhausted(p)); no {
		r.Action, r.Verdict, r.Rule = UnknownTool, string(policy.Deny), rule
		s.recordRefused(ctx, r)
		return cause
	}
	r.InputBytes, r.InputHash = size, sum
	return s.recordRefusal(ctx, r, cause)
}

// refusal returns the record of a refused call, without its input. The log redacts and bounds its
// error.
func (s *Service) refusal(p caller.Principal, name string, cause error) audit.Record {
	return audit.Record{
		Kind: audit.KindEvent, Caller: p.Caller, Token: p.Token, Profile: s.profileOf(p), Trust: p.Trust, Via: p.Via,
		Action: audit.TruncateName(name), Ending: EndedFailed, Error: auditText(cause), Uncharged: p.Operator,
	}
}

// recordRefusal writes the record and returns cause, joined with the error if it could not be
// written.
func (s *Service) recordRefusal(ctx context.Context, r audit.Record, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := s.opts.Config.Audit.Event(ctx, r); err != nil {
		return errors.Join(cause, fmt.Errorf("and the call was not recorded: %w", err))
	}
	return cause
}

// hideRefused hides the secrets of an input, or of a request that holds one, until show is called.
func (g *Config) hideRefused(ctx context.Context, caller string, body []byte) (show func(), err error) {
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

// recordRefused counts a refused call. A failure is only logged: the call does not run, so it needs
// no record.
func (s *Service) recordRefused(ctx context.Context, r audit.Record) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := s.opts.Config.Audit.Refused(ctx, r); err != nil {
		s.log.Error("failed to record a refused call; will retry", "caller", r.Caller, "rule", r.Rule, "error", err)
	}
}
