package profile

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/approval"
	"github.com/sandbox-orchestrator/orchestrator/internal/expr"
	"github.com/sandbox-orchestrator/orchestrator/internal/policy"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Tool finds a tool by its name, or by the name that it has over MCP, where
// dots are underscores. The error for one that is not known is of class
// NotFound and names those that are. Disabled tools are found.
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
	return nil, usererror.Errorf(errdefs.ErrNotFound, "tool %q is not in profile %s%s (known: %s)", shorten(name), c.Profile.Name, nearest(name, known), strings.Join(known, ", "))
}

// Tools lists all in the order of the file, disabled ones too.
func (c *Compiled) Tools() []*CompiledTool { return slices.Clone(c.order) }

// CompiledTool is a tool of a profile, ready for calls.
type CompiledTool struct {
	spec    Tool
	profile *Compiled
	builtin *tool.Tool // nil where bases chooses it, or there is none

	schema                   *inputSchema // nil: the built-in tool's own check
	bases, arguments, result *expr.Expr
	text                     *textTemplate
	errors                   map[string]*toolError
	caps                     tool.Caps
	policy                   *policy.Policy // nil: the profile's
}

type toolError struct {
	kind    string
	message *textTemplate
}

// Name is the tool's name in the profile.
func (t *CompiledTool) Name() string { return t.spec.Name }

// MCPName is its name where dots may not be.
func (t *CompiledTool) MCPName() string { return mcpName(t.spec.Name) }

// Title and Description are the profile's, or the built-in tool's.
func (t *CompiledTool) Title() string {
	if t.spec.Title == "" && t.builtin != nil {
		return t.builtin.Title
	}
	return t.spec.Title
}

// Description says to models what the tool does.
func (t *CompiledTool) Description() string {
	if t.spec.Description == "" && t.builtin != nil {
		return t.builtin.Description
	}
	return t.spec.Description
}

// Input is the JSON Schema of what callers send.
func (t *CompiledTool) Input() json.RawMessage {
	if t.spec.Input == nil {
		return t.builtin.Input
	}
	return t.spec.Input
}

// Output is the JSON Schema of what they get, nil if it is not described.
func (t *CompiledTool) Output() json.RawMessage {
	if t.spec.Output == nil && t.spec.Result == "" && t.builtin != nil {
		return t.builtin.Output
	}
	return t.spec.Output
}

// Effects are what the tool does to the world.
func (t *CompiledTool) Effects() []tool.Effect {
	if t.spec.Effects == nil && t.builtin != nil {
		return t.builtin.Effects
	}
	return t.spec.Effects
}

// Trust is the level that a caller needs.
func (t *CompiledTool) Trust() int {
	if t.spec.Trust == nil {
		return t.builtin.Trust
	}
	return *t.spec.Trust
}

// Cacheable, ReadOnly, Destructive and Idempotent are as in tool.Tool. Of a
// tool whose built-in one is chosen by the input, effects decide.
func (t *CompiledTool) Cacheable() bool { return t.builtin != nil && t.builtin.Cacheable }

// ReadOnly says that it changes nothing.
func (t *CompiledTool) ReadOnly() bool {
	if t.builtin != nil {
		return t.builtin.ReadOnly
	}
	return !slices.ContainsFunc(t.spec.Effects, func(e tool.Effect) bool { return !strings.HasPrefix(string(e), "reads(") })
}

// Destructive says that it may destroy.
func (t *CompiledTool) Destructive() bool {
	if t.builtin != nil {
		return t.builtin.Destructive
	}
	return !t.ReadOnly()
}

// Idempotent says that twice is the same as once.
func (t *CompiledTool) Idempotent() bool {
	if t.builtin != nil {
		return t.builtin.Idempotent
	}
	return t.ReadOnly()
}

// Enabled says whether it may be called.
func (t *CompiledTool) Enabled() bool { return !t.spec.Disabled }

// Caps bound its calls. The maps and slices in it are shared: read them only.
func (t *CompiledTool) Caps() tool.Caps { return t.caps }

// Rate is its limit for one caller, nil for none.
func (t *CompiledTool) Rate() *approval.Rate { return t.spec.Rate }

// Policy decides on its commands: its own, or the profile's.
func (t *CompiledTool) Policy() *policy.Policy {
	if t.policy == nil {
		return t.profile.policy
	}
	return t.policy
}
