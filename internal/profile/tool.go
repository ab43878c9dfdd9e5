package profile

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/expr"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Tool finds a tool by name, or by its MCP name, in which dots are underscores. It also finds
// disabled tools. If the tool does not exist, the error is NotFound and lists the tools.
func (c *Compiled) Tool(name string) (*CompiledTool, error) {
	if t, ok := c.tools[name]; ok {
		return t, nil
	}
	if t, ok := c.byForm[name]; ok {
		return t, nil
	}
	known := make([]string, len(c.order))
	for i, t := range c.order {
		known[i] = t.spec.Name
	}
	return nil, usererror.Errorf(errdefs.ErrNotFound, "tool %q is not in profile %s%s (known: %s)", clip.Message(name),
		c.Profile.Name, nearest(name, known), strings.Join(known, ", "))
}

// Tools returns all tools in the order of the file, including disabled ones.
func (c *Compiled) Tools() []*CompiledTool { return slices.Clone(c.order) }

// CompiledTool is a tool of a profile, ready for calls.
type CompiledTool struct {
	spec    Tool
	profile *Compiled
	builtin *tool.Tool // nil if Bases selects it, or for a name without a built-in tool

	schema                   *inputSchema // nil: the built-in tool validates the input
	bases, arguments, result *expr.Expr
	text                     *textTemplate
	errors                   map[string]*toolError
	caps                     tool.Caps
	policy                   *policy.Policy // nil: the policy of the profile
}

type toolError struct {
	kind    string
	message *textTemplate
}

// Name returns the name of the tool in the profile.
func (t *CompiledTool) Name() string { return t.spec.Name }

// MCPName returns the name with underscores for dots.
func (t *CompiledTool) MCPName() string { return mcpName(t.spec.Name) }

// Title returns the title from the profile, or else of the built-in tool.
func (t *CompiledTool) Title() string {
	if t.spec.Title == "" && t.builtin != nil {
		return t.builtin.Title
	}
	return t.spec.Title
}

// Description returns the description for models, from the profile or else of the built-in tool.
func (t *CompiledTool) Description() string {
	if t.spec.Description == "" && t.builtin != nil {
		return t.builtin.Description
	}
	return t.spec.Description
}

// Input returns the JSON Schema of the input.
func (t *CompiledTool) Input() json.RawMessage {
	if t.spec.Input == nil {
		return t.builtin.Input
	}
	return t.spec.Input
}

// Output returns the JSON Schema of the output, or nil if there is none.
func (t *CompiledTool) Output() json.RawMessage {
	if t.spec.Output == nil && t.spec.Result == "" && t.builtin != nil {
		return t.builtin.Output
	}
	return t.spec.Output
}

// Effects returns the effects of the tool.
func (t *CompiledTool) Effects() []tool.Effect {
	if t.spec.Effects == nil && t.builtin != nil {
		return t.builtin.Effects
	}
	return t.spec.Effects
}

// Trust returns the trust level that a caller needs.
func (t *CompiledTool) Trust() int {
	if t.spec.Trust == nil {
		return t.builtin.Trust
	}
	return *t.spec.Trust
}

// Cacheable is as in tool.Tool. If Bases selects the built-in tool, it is false.
func (t *CompiledTool) Cacheable() bool { return t.builtin != nil && t.builtin.Cacheable }

// ReadOnly reports whether the tool changes nothing. If Bases selects the built-in tool, it follows
// from the effects.
func (t *CompiledTool) ReadOnly() bool {
	if t.builtin != nil {
		return t.builtin.ReadOnly
	}
	return !slices.ContainsFunc(t.spec.Effects,
		func(e tool.Effect) bool { return !strings.HasPrefix(string(e), "reads(") })
}

// Destructive reports whether the tool may destroy data. If Bases selects the built-in tool, it is
// the opposite of ReadOnly.
func (t *CompiledTool) Destructive() bool {
	if t.builtin != nil {
		return t.builtin.Destructive
	}
	return !t.ReadOnly()
}

// Idempotent reports whether repeated calls have the effect of one. If Bases selects the built-in
// tool, it equals ReadOnly.
func (t *CompiledTool) Idempotent() bool {
	if t.builtin != nil {
		return t.builtin.Idempotent
	}
	return t.ReadOnly()
}

// Enabled reports whether the tool may be called.
func (t *CompiledTool) Enabled() bool { return !t.spec.Disabled }

// Caps returns the bounds of calls. Callers must not modify maps and slices in it.
func (t *CompiledTool) Caps() tool.Caps { return t.caps }

// Rate returns the rate limit per caller, or nil.
func (t *CompiledTool) Rate() *approval.Rate { return t.spec.Rate }

// Policy returns the command policy of the tool, or else of the profile.
func (t *CompiledTool) Policy() *policy.Policy {
	if t.policy == nil {
		return t.profile.policy
	}
	return t.policy
}
