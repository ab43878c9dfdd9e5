package profile

import "encoding/json"

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
