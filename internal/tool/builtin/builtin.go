// Package builtin lists all built-in tools.
package builtin

import (
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/webtool"
)

var tools = slices.SortedFunc(
	slices.Values(slices.Concat(tool.Tools(), webtool.Tools())),
	func(a, b *tool.Tool) int { return strings.Compare(a.Name, b.Name) },
)

// All returns all built-in tools, sorted by name.
func All() []*tool.Tool { return slices.Clone(tools) }

// Get returns a built-in tool by name.
func Get(name string) (*tool.Tool, bool) {
	i, ok := slices.BinarySearchFunc(tools, name, func(t *tool.Tool, name string) int {
		return strings.Compare(t.Name, name)
	})
	if !ok {
		return nil, false
	}
	return tools[i], true
}
