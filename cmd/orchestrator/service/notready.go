package service

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
)

// noteNotReady prints why templates cannot be used.
func (s *service) noteNotReady(ctx context.Context) {
	for _, t := range s.engine.Templates.List(ctx, caller.Local("")) {
		if t.Error == "" {
			continue
		}
		s.note("template %s is not ready: %s%s", t.Name, cli.WithoutClass(t.Error), s.importAdvice(t))
	}
}

// importAdvice returns the command that imports the sandbox image for a template that lacks it, or
// "". The command goes to this server.
func (s *service) importAdvice(t v1.Template) string {
	if t.Image != config.DefaultImage || !strings.Contains(t.Error, "not found") {
		return ""
	}
	archive := `"$(make -s image)"` // in a checkout
	// The newest one that make image has made.
	if found, err := filepath.Glob("/var/cache/orchestrator/sandbox-*/sandbox.tar"); err == nil && len(found) > 0 {
		archive = slices.MaxFunc(found, func(a, b string) int { return modified(a).Compare(modified(b)) })
	}
	command := "orchestrator image import " + archive
	if s.config.Listen != config.Default().Listen {
		command += " --address " + listenAddress(s.listener, s.config)
	}
	return ": run `" + command + "`"
}

// modified returns the time of a file's last change, or the zero time.
func modified(path string) time.Time {
	info, err := os.Stat(path)
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}
