package profile

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
)

func (k *toolCompiler) caps() error {
	c := k.spec.Caps
	for _, n := range []struct {
		field string
		value float64
	}{
		{"timeout_ms", float64(c.TimeoutMS)}, {"max_timeout_ms", float64(c.MaxTimeoutMS)},
		{"output.limit", float64(c.Output.Limit)},
		{"max_file_bytes", float64(c.MaxFile)}, {"memory_bytes", float64(c.MemoryBytes)}, {"cpus", c.CPUs},
	} {
		if n.value < 0 {
			return k.fail("caps."+n.field, "must not be negative")
		}
	}
	const day = 24 * time.Hour
	if limit := day.Milliseconds(); c.TimeoutMS > limit || c.MaxTimeoutMS > limit {
		return k.fail("caps", "has a timeout over 24 hours")
	}
	if c.MaxTimeoutMS > 0 && c.TimeoutMS > c.MaxTimeoutMS {
		return k.fail("caps.timeout_ms", "is %d: must not exceed max_timeout_ms (%d)", c.TimeoutMS, c.MaxTimeoutMS)
	}
	if err := checkOneOf(k.d, k.at, "caps.output.unit", c.Output.Unit, "", tool.Bytes, tool.Characters); err != nil {
		return err
	}
	if err := checkOneOf(k.d, k.at, "caps.output.keep", c.Output.Keep, "", tool.Head, tool.Tail,
		tool.Both); err != nil {
		return err
	}
	dirs, err := k.dirs(c.Dirs)
	if err != nil {
		return err
	}
	k.out.caps = tool.Caps{
		Timeout:    time.Duration(c.TimeoutMS) * time.Millisecond,
		MaxTimeout: time.Duration(c.MaxTimeoutMS) * time.Millisecond, Clamp: c.Clamp,
		Output: c.Output, MaxFile: c.MaxFile, Dirs: dirs, Alias: k.profile.Profile.Paths, ReadOnly: c.ReadOnly,
		NoFollow:    c.NoFollow,
		MemoryBytes: c.MemoryBytes, CPUs: c.CPUs,
	}
	return k.web(c.Web)
}

// webTools are the built-in tools that caps.web applies to.
var webTools = []string{"web.fetch", "http.request", "browser.open"}

// web compiles caps.web.
func (k *toolCompiler) web(w *reach.Caps) error {
	if w == nil {
		return nil
	}
	if b := k.out.builtin; b != nil && !slices.Contains(webTools, b.Name) {
		return k.fail("caps.web", "applies only to %s: remove it for %s", strings.Join(webTools, ", "),
			b.Name)
	}
	k.out.caps.Web = *w
	if err := k.out.caps.Web.Compile(); err != nil {
		field, message, _ := strings.Cut(err.Error(), " ")
		return k.fail("caps.web."+field, "%s", message)
	}
	return nil
}

// dirs returns the allowed directories as paths in the sandbox.
func (k *toolCompiler) dirs(dirs []string) ([]string, error) {
	out := make([]string, 0, len(dirs))
	for i, dir := range dirs {
		if !path.IsAbs(dir) || path.Clean(dir) != dir || strings.ContainsRune(dir, 0) {
			return nil, k.fail(fmt.Sprintf("caps.dirs[%d]", i), "is %q: use an absolute, clean path", clip.Message(dir))
		}
		out = append(out, k.profile.inside(dir))
	}
	return out, nil
}

// inside maps a directory by Profile.Paths.
func (c *Compiled) inside(dir string) string {
	best := ""
	for from := range c.Profile.Paths {
		if (dir == from || strings.HasPrefix(dir, from+"/")) && len(from) > len(best) {
			best = from
		}
	}
	if best == "" {
		return dir
	}
	return c.Profile.Paths[best] + strings.TrimPrefix(dir, best)
}
