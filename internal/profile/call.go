package profile

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool/builtin"
)

// Call is one call of a tool. It must not be used concurrently.
type Call struct {
	Tool *CompiledTool
	// Base is the built-in tool, and Input is the input for it.
	Base  *tool.Tool
	Input json.RawMessage

	raw   json.RawMessage
	input map[string]any // decoded lazily
	call  map[string]any
}

// Prepare validates the input of a call and maps it for the built-in tool. call is data for
// expressions: id, caller, trust, tool, profile and session. An invalid input gives an *InputError
// or the error of the built-in tool; other errors are errors of the profile.
//
// Without a mapping, the input is not decoded: the built-in tool validates it.
func (t *CompiledTool) Prepare(ctx context.Context, raw json.RawMessage, call map[string]any) (*Call, error) {
	c := &Call{Tool: t, Base: t.builtin, Input: raw, raw: raw, call: call}
	if t.schema == nil {
		if len(raw) == 0 {
			c.Input = json.RawMessage("{}")
		}
		return c, nil
	}
	input, err := t.schema.check(raw)
	if err != nil {
		return nil, t.worded(err)
	}
	c.input = input
	vars := map[string]any{"input": input, "call": call}
	if t.bases != nil {
		name, err := t.bases.Text(ctx, vars)
		if err != nil {
			return nil, t.broken("bases", err)
		}
		base, ok := builtin.Get(name)
		if !ok {
			return nil, t.broken("bases", fmt.Errorf("gives %q, which is not a built-in tool", clip.Message(name)))
		}
		c.Base = base
	}
	if t.arguments == nil {
		c.Input, err = encodeJSON(input)
		return c, err
	}
	if c.Input, err = t.arguments.JSON(ctx, vars); err != nil {
		return nil, t.broken("arguments", err)
	}
	return c, nil
}

// broken returns an internal error for an expression of the profile that failed.
func (t *CompiledTool) broken(field string, err error) error {
	name := t.profile.Profile.Name
	return fmt.Errorf("profile %s, tool %s: %s: %s: %w", name, t.spec.Name, field, err, errdefs.ErrInternal)
}

// worded rewrites an input error with the error text of the profile, if it has one.
func (t *CompiledTool) worded(err error) error {
	e, ok := err.(*InputError) //nolint:errorlint // returned directly
	if !ok {
		return err
	}
	for _, key := range []string{EndingInvalid + ":" + e.Problem, EndingInvalid} {
		te := t.errors[key]
		if te == nil {
			continue
		}
		worded := &InputError{Field: e.Field, Problem: e.Problem, Type: te.kind, Message: e.Error()}
		if te.message != nil {
			s, err := te.message.run(map[string]any{"field": cmp.Or(e.Field, "input"), "message": e.Message})
			if err != nil {
				return t.broken("errors."+key, err)
			}
			worded.Message = s
		}
		return worded
	}
	return e
}
