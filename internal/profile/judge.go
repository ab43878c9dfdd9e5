package profile

import (
	"encoding/json"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Bare returns a Call with an unchecked input, for a call that was already refused.
func (t *CompiledTool) Bare(raw json.RawMessage, call map[string]any) *Call {
	return &Call{Tool: t, Base: t.builtin, Input: raw, raw: raw, call: call}
}

// Values returns the input for conditions of rules, or nil if it is not an object.
func (c *Call) Values() map[string]any {
	if c.input == nil {
		if v, err := decodeJSON(c.raw); err == nil {
			c.input, _ = v.(map[string]any)
		}
	}
	return c.input
}

// Check returns the verdict on a command by the policy of the named tool. If name is "", it uses
// the first tool that runs such commands. A command line is parsed as that tool would: as shell
// code, or only split into words.
func (c *Compiled) Check(name, command string, argv []string) (policy.Verdict, error) {
	t, err := c.commandTool(name, command != "")
	if err != nil {
		return policy.Verdict{}, err
	}
	p := t.Policy()
	switch {
	case command != "" && argv != nil:
		return policy.Verdict{}, usererror.Errorf(errdefs.ErrInvalidArgument,
			"command and argv are both set: use one of them")
	case argv != nil:
		return p.Argv(argv), nil
	case p.ArgvRules() != nil:
		_, v := p.Line(command)
		return v, nil
	}
	return p.Command(command), nil
}

// commandTools are the built-in tools whose commands the policy checks.
var commandTools = []string{"system.bash", "system.line", "system.run"}

func (c *Compiled) commandTool(name string, line bool) (*CompiledTool, error) {
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
		return nil, usererror.Errorf(errdefs.ErrFailedPrecondition, "profile %s has no tool that runs commands",
			c.Profile.Name)
	}
	return found, nil
}

// isLine reports whether a tool takes a command as one line.
func isLine(t *tool.Tool) bool { return t.Name != "system.run" }
