package profile

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
)

// Call is one call of a tool: its input as callers gave it, and as the
// built-in tool takes it. It is used by one goroutine.
type Call struct {
	Tool *CompiledTool
	// Base is the built-in tool, Input what it gets.
	Base  *tool.Tool
	Input json.RawMessage

	raw   json.RawMessage
	input map[string]any // nil until somebody looks
	call  map[string]any
}

// Prepare checks the input of a call and maps it. call is for expressions: id,
// caller, trust, tool, profile and session. What is wrong with the input is an
// *InputError, or what the built-in tool says of it; other errors are the
// profile's.
//
// A tool without a mapping costs nothing: its input is left for the built-in
// tool to check.
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
		base, ok := tool.Get(name)
		if !ok {
			return nil, t.broken("bases", fmt.Errorf("gives %q, which is no built-in tool", shorten(name)))
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

// broken is about a profile whose expression cannot be evaluated for a call.
func (t *CompiledTool) broken(field string, err error) error {
	return fmt.Errorf("profile %s, tool %s: %s: %s: %w", t.profile.Profile.Name, t.spec.Name, field, err, errdefs.ErrInternal)
}

// worded puts an error of the input in the profile's words, if it has some.
func (t *CompiledTool) worded(err error) error {
	e, ok := err.(*InputError) //nolint:errorlint // it was just made
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
