package profile

import (
	"encoding/json"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Bare is a call whose input nobody looked at, for one that was refused before.
func (t *CompiledTool) Bare(raw json.RawMessage, call map[string]any) *Call {
	return &Call{Tool: t, Base: t.builtin, Input: raw, raw: raw, call: call}
}

// Values are the call's input, for conditions of rules; nil if it is no object.
func (c *Call) Values() map[string]any {
	if c.input == nil {
		if v, err := decodeJSON(c.raw); err == nil {
			c.input, _ = v.(map[string]any)
		}
	}
	return c.input
}

// Check says what a policy of the profile decides on a command: that of a tool,
// or with "" that of the first tool that runs commands of such a form. A
// command line is looked at as that tool would: by the shell's grammar, or
// split into words alone.
func (c *Compiled) Check(name, command string, argv []string) (policy.Verdict, error) {
	t, err := c.judge(name, command != "")
	if err != nil {
		return policy.Verdict{}, err
	}
	p := t.Policy()
	switch {
	case command != "" && argv != nil:
		return policy.Verdict{}, usererror.Errorf(errdefs.ErrInvalidArgument, "command and argv are both set: use one of them")
	case argv != nil:
		return p.Argv(argv), nil
	case p.ArgvRules() != nil:
		_, v := p.Line(command)
		return v, nil
	}
	return p.Command(command), nil
}

// commandTools are those whose commands a policy decides on.
var commandTools = []string{"system.bash", "system.line", "system.run"}

func (c *Compiled) judge(name string, line bool) (*CompiledTool, error) {
	if name != "" {
		return c.Tool(name)
	}
	var found *CompiledTool
	for _, t := range c.order {
		if t.builtin == nil || !slices.Contains(commandTools, t.builtin.Name) {
			continue
		}
		if found == nil || line && isLine(t.builtin) && !isLine(found.builtin) {
			found = t
		}
	}
	if found == nil {
		return nil, usererror.Errorf(errdefs.ErrFailedPrecondition, "profile %s has no tool that runs commands", c.Profile.Name)
	}
	return found, nil
}

// isLine says whether a tool takes a command as one line.
func isLine(t *tool.Tool) bool { return t.Name != "system.run" }
