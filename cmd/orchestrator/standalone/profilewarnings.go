//go:build linux

package standalone

import (
	"log/slog"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
)

// warnOfProfiles logs settings of profiles that have no effect: those that could not be applied as
// written, and memory limits of tools above those of every template.
func warnOfProfiles(log *slog.Logger, set *profile.Set, templates map[string]config.Template) {
	var most int64
	for _, t := range templates {
		most = max(most, int64(t.Limits.Memory))
	}
	for _, p := range set.List() {
		for _, w := range p.Profile.Warnings {
			log.Warn("setting of a profile has no effect", "profile", p.Profile.Name, "reason", w)
		}
		for _, t := range p.Tools() {
			if limit := t.Caps().MemoryBytes; most > 0 && limit > most {
				log.Warn("memory limit of a tool has no effect: every template has less", "profile", p.Profile.Name,
					"tool", t.Name(), "bytes", limit, "template_bytes", most)
			}
		}
	}
}
