package tool

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// path returns the sandbox's name for a caller's path. It replaces aliases and refuses paths
// outside the directories that the caps allow. The guest ensures that links and ".." do not lead
// outside.
func (c Caps) path(field, p string) (string, error) {
	if strings.ContainsRune(p, 0) {
		return "", Invalid(field, "holds a NUL byte")
	}
	if len(p) > wire.MaxPathBytes {
		return "", Invalid(field, "is %d bytes long: at most %d", len(p), wire.MaxPathBytes)
	}
	full := c.unalias(p)
	if !path.IsAbs(full) {
		full = wire.Workspace + "/" + full
	}
	full = path.Clean(full)
	if len(c.Dirs) == 0 || slices.ContainsFunc(c.Dirs, func(d string) bool { return within(full, d) }) {
		return full, nil
	}
	return "", forbidden("%s is not allowed: use one below %s", quote(p), strings.Join(c.shown(), ", "))
}

// shown returns the allowed directories as the caller names them.
func (c Caps) shown() []string {
	out := slices.Clone(c.Dirs)
	for i, d := range out {
		for alias, target := range c.Alias {
			if target == d {
				out[i] = alias
			}
		}
	}
	return out
}

func (c Caps) unalias(p string) string {
	clean := p
	if path.IsAbs(p) {
		clean = path.Clean(p)
	}
	// Longest first: one alias may be below another.
	for _, alias := range slices.SortedFunc(maps.Keys(c.Alias), func(a, b string) int { return len(b) - len(a) }) {
		if within(clean, alias) {
			return c.Alias[alias] + strings.TrimPrefix(clean, alias)
		}
	}
	return p
}

func within(p, dir string) bool {
	dir = strings.TrimSuffix(dir, "/")
	return p == dir || strings.HasPrefix(p, dir+"/")
}

// folder is path for a command's working directory. Empty means the workspace.
func (c Caps) folder(field, p string) (string, error) {
	if p == "" {
		return "", nil
	}
	if len(c.Dirs) == 0 && len(c.Alias) == 0 {
		return p, nil
	}
	return c.path(field, p)
}

// quote quotes a caller's path and limits its length.
func quote(p string) string {
	const most = 200
	if len(p) > most {
		p = p[:most] + "…"
	}
	return strings.ToValidUTF8(`"`+p+`"`, "\uFFFD")
}
