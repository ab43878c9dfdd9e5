package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"orchestrator/internal/cgroup"
	"orchestrator/internal/config"
	"orchestrator/internal/engine"
	"orchestrator/internal/scheduler"
	"orchestrator/pool"
	"orchestrator/runtime"
)

// templates are the configured ones; those not asked for are left out.
func templates(c config.Config, wanted ...string) []scheduler.Template {
	var out []scheduler.Template
	for name, t := range c.Templates {
		if len(wanted) > 0 && !slices.Contains(wanted, name) {
			continue
		}
		out = append(out, scheduler.Template{
			Name: name,
			Spec: runtime.Spec{
				Template: name, Image: runtime.Image{Ref: t.Image}, Limits: t.Limits.Runtime(), Entrypoint: t.Entrypoint, Alone: c.Guest.Alone.Std(),
			},
			Pool: pool.Settings{Min: t.Pool.Min, Max: t.Pool.Max, Rate: t.Pool.Rate, Parallel: t.Pool.Parallel, MaxAge: t.Pool.MaxAge.Std()},
		})
	}
	return out
}

// engineOptions are those that the configuration and the program say.
func (a *app) engineOptions(c config.Config, guestHash string) (engine.Options, error) {
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
		TTL:             c.Leases.TTL.Std(), MaxTTL: c.Leases.MaxTTL.Std(), Idle: c.Leases.Idle.Std(),
		Timeout: c.Exec.Timeout.Std(), MaxTimeout: c.Exec.MaxTimeout.Std(),
		MaxOutput: int64(c.Exec.MaxOutput), OutputCap: int64(c.Exec.OutputCap),
		Wait: c.Admission.Wait.Std(), MaxSandboxes: c.Admission.MaxSandboxes, Queue: c.Admission.Queue, MaxMemory: memory,
		// A warm sandbox can be kept over a restart as long as its guest is the same.
		Version: a.version, Build: a.version + "+" + guestHash[:12], Cgroup: mode,
	}, nil
}

// totalMemory is the host's, in bytes.
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
	return 0, fmt.Errorf("memory of this host: /proc/meminfo does not tell")
}

// logger writes the log as configured.
func logger(w io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo // Validate has refused it before
	}
	options := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// teardownTime bounds what is done after the context of a command has ended.
const teardownTime = 30 * time.Second
