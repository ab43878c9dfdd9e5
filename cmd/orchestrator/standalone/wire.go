//go:build linux

package standalone

import (
	"cmp"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/cmd/orchestrator/cli"
	"github.com/sandbox-orchestrator/orchestrator/internal/cgroup"
	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine/templates"
	"github.com/sandbox-orchestrator/orchestrator/internal/jobs"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/pool"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
	"github.com/sandbox-orchestrator/orchestrator/volumes"
)

// configuredTemplates returns the configured templates, or only the wanted ones.
func configuredTemplates(c config.Config, wanted ...string) []scheduler.Template {
	var out []scheduler.Template
	for name, t := range c.Templates {
		if len(wanted) > 0 && !slices.Contains(wanted, name) {
			continue
		}
		out = append(out, templateOf(name, t, c.Guest.OrphanTimeout.Std()))
	}
	return out
}

// templateOf converts a configured template.
func templateOf(name string, t config.Template, alone time.Duration) scheduler.Template {
	out := scheduler.Template{
		Name: name,
		Spec: runtime.Spec{
			Template: name, Image: runtime.Image{Ref: t.Image}, Class: runtime.Class(t.Class), Limits: t.Limits.Runtime(),
			Tmpfs: byteSizes(t.Tmpfs), Ulimits: byteSizes(t.Ulimits), Entrypoint: t.Entrypoint, OrphanTimeout: alone,
			UserNamespace: t.UserNamespace == config.UserNamespaceOwn,
		},
		AutoUserNamespace: t.UserNamespace == config.UserNamespaceAuto,
		Pool: pool.Settings{
			Min:         t.Pool.Min,
			Max:         t.Pool.Max,
			Rate:        t.Pool.Rate,
			Parallel:    t.Pool.Parallel,
			MaxAge:      t.Pool.MaxAge.Std(),
			RefillDelay: t.Pool.RefillDelay.Std(),
			Adaptive:    t.Pool.Adaptive,
		},
		Env: t.Env, User: t.User,
	}
	for _, h := range t.Warmup {
		out.Warmup = append(
			out.Warmup,
			scheduler.Hook{Argv: h.Argv, Timeout: cmp.Or(h.Timeout, config.DefaultHookTimeout).Std(), Background: h.Background},
		)
	}
	return out
}

// byteSizes converts sizes to bytes. It returns nil for none, so that templates without any compare
// equal.
func byteSizes(sizes map[string]config.Size) map[string]int64 {
	if len(sizes) == 0 {
		return nil
	}
	out := make(map[string]int64, len(sizes))
	for name, n := range sizes {
		out[name] = int64(n)
	}
	return out
}

// SelectTemplate returns c with the templates of its directory. Only the wanted one must be valid.
func SelectTemplate(a *cli.App, c config.Config, wanted string) (config.Config, error) {
	list, err := c.Sources(a.ConfigFile())
	if err != nil {
		return c, err
	}
	all := map[string]config.Template{}
	for _, src := range list {
		if src.Err != nil && src.Name == wanted {
			return c, src.Err
		}
		if src.Err == nil {
			all[src.Name] = src.Template
		}
	}
	if _, known := all[wanted]; !known {
		return c, cli.Refuse(errdefs.ErrNotFound, "template %q is not known: use one of: %s", wanted, strings.Join(SortedKeys(all), ", "))
	}
	c.Templates = all
	return c, nil
}

// TemplateSources returns the templates of the configuration c in file, and of its directory.
func TemplateSources(file string, c config.Config) ([]templates.Source, error) {
	list, err := c.Sources(file)
	out := make([]templates.Source, 0, len(list))
	for _, src := range list {
		t := scheduler.Template{Name: src.Name}
		if src.Err == nil {
			t = templateOf(src.Name, src.Template, c.Guest.OrphanTimeout.Std())
		}
		out = append(out, templates.Source{Template: t, File: src.File, Err: src.Err})
	}
	return out, err
}

// EngineOptions returns the options that follow from the configuration and the program.
func EngineOptions(a *cli.App, c config.Config, guestHash string) (engine.Options, error) {
	memory := int64(c.Admission.MaxMemory)
	if memory == 0 {
		total, err := totalMemory()
		if err != nil {
			return engine.Options{}, err
		}
		memory = total / 10 * 8
	}
	host, err := cgroup.Detect()
	mode := string(host.Mode)
	if err != nil {
		mode = "none"
	}
	return engine.Options{
		DefaultTemplate: config.DefaultTemplate,
		Limits: engine.Limits{
			TTL: c.Leases.TTL.Std(), MaxTTL: c.Leases.MaxTTL.Std(), Idle: c.Leases.Idle.Std(),
			Timeout: c.Exec.Timeout.Std(), MaxTimeout: c.Exec.MaxTimeout.Std(),
			MaxOutput: int64(c.Exec.MaxOutput), OutputCap: int64(c.Exec.OutputCap),
			Wait: c.Admission.Wait.Std(), MaxSandboxes: c.Admission.MaxSandboxes, Queue: c.Admission.Queue,
			MaxMemory: memory,
		},
		Keys: store.KeyBounds{Answers: c.Idempotency.Answers, Bytes: int64(c.Idempotency.Bytes)},
		Jobs: jobs.Limits{
			Commands: c.Jobs.MaxCommands, Active: c.Jobs.MaxActive, Kept: c.Jobs.MaxKept, Native: c.Jobs.MaxNative,
			Bytes: int64(c.Jobs.CallerBytes), Deadline: c.Jobs.MaxDeadline.Std(), TTL: c.Jobs.MaxTTL.Std(),
		},
		// A warm sandbox survives a restart only if its guest is the same.
		Program: engine.Program{Version: a.Version, Build: a.Version + "+" + guestHash[:12], Cgroup: mode},
	}, nil
}

// totalMemory returns the memory of this host in bytes.
func totalMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("memory of this host: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("memory of this host: %w", err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("memory of this host: no MemTotal in /proc/meminfo")
}

// teardownTime bounds the work after the context of a command has ended.
const teardownTime = 30 * time.Second

// templateOfClass returns the template of a local run that names none: the default one, or the
// first whose class is strong enough. If there is none, it is the default one, which the engine
// refuses.
func templateOfClass(a *cli.App, c config.Config, class string) (string, error) {
	list, err := c.Sources(a.ConfigFile())
	if err != nil {
		return "", err
	}
	best := ""
	for _, src := range list {
		if src.Err != nil || !runtime.Class(src.Template.Class).AtLeast(runtime.Class(class)) {
			continue
		}
		if src.Name == config.DefaultTemplate {
			return src.Name, nil
		}
		if best == "" || src.Name < best {
			best = src.Name
		}
	}
	if best == "" {
		return config.DefaultTemplate, nil
	}
	return best, nil
}

// VolumeOptions returns the configured options of workspaces.
func VolumeOptions(c config.Config, log *slog.Logger) volumes.Options {
	w := c.Workspaces
	return volumes.Options{
		Mechanism: w.Mechanism, Quota: int64(w.Quota), MaxQuota: int64(w.MaxQuota), Snapshots: w.Snapshots, Log: log,
		Overlays: volumes.Overlays{Keep: w.Overlays.Keep.Std(), Max: w.Overlays.Max},
	}
}
