// Package standalone opens the parts of the service in this process: drivers, images, workspaces,
// governance and the engine, as the configuration says. The server uses them for its life; commands
// without a server use them for one command.
//
// It also keeps several processes apart in one state directory. Locks say who uses which part, and
// a janitor process cleans up after a local run, even if the run was killed.
//
// All of this needs Linux. For other systems the package has only what clients of a server use.
package standalone

import (
	"io"
	"log/slog"

	"github.com/sandbox-orchestrator/orchestrator/internal/config"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
)

// ImageNeeds says what a command about images needs besides the image store.
type ImageNeeds struct {
	Registry  bool // for pulls
	Removal   bool // for removals: refuse while sandboxes use images
	Templates bool // for collections: keep the images of templates
}

// HeldByServerError says that a server holds what a command without a server needs.
type HeldByServerError struct{ error }

// Unwrap returns the error with its class.
func (e *HeldByServerError) Unwrap() error { return e.error }

// Logger returns a logger with the configured format and level.
func Logger(w io.Writer, c config.Log) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		level = slog.LevelInfo // Validate refused it before
	}
	return LeveledLogger(w, c.Format, level)
}

// LeveledLogger returns a logger in a format of config.Log. level may change while it is used.
func LeveledLogger(w io.Writer, format string, level slog.Leveler) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == "json" {
		// Without this, a duration is a number of nanoseconds. The text format has units.
		options.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration {
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

// LoadProfiles reads the profiles in dir beside the built-in ones, or only those if dir is "".
func LoadProfiles(dir string) (*profile.Set, error) {
	if dir == "" {
		return profile.Builtin()
	}
	return profile.Load(dir)
}
