package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// Palette colours words on a terminal. The zero value leaves them unchanged.
type Palette struct{ On bool }

// NewPalette returns the palette for standard output: colours only on a terminal, and not if
// NO_COLOR is set or TERM is "dumb".
func (a *App) NewPalette() Palette {
	if v, set := a.Lookup("NO_COLOR"); set && v != "" {
		return Palette{}
	}
	if v, _ := a.Lookup("TERM"); v == "dumb" {
		return Palette{}
	}
	return Palette{IsTerminal(a.Stdout)}
}

// IsTerminal reports whether w is a file that is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (p Palette) paint(code int, s string) string {
	if !p.On {
		return s
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, s)
}

// The colours mean success, an end and a problem.
func (p Palette) good(s string) string { return p.paint(32, s) }

func (p Palette) dim(s string) string { return p.paint(2, s) }

func (p Palette) bad(s string) string { return p.paint(31, s) }

// Event colours the type of an event.
func (p Palette) Event(kind string) string {
	switch _, what, _ := strings.Cut(kind, "."); what {
	case "leased", "warm", "ready", "started", "created", "pulled", "imported":
		return p.good(kind)
	case "failed", "not_ready":
		return p.bad(kind)
	case "gone", "removed", "ended", "stopping":
		return p.dim(kind)
	}
	if kind == "gap" {
		return p.bad(kind)
	}
	return kind
}
