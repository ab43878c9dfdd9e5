package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// palette colours words; the zero value leaves them as they are.
type palette struct{ on bool }

// colours are for a terminal that nobody asked to stay plain: NO_COLOR, and
// TERM=dumb.
func (a *app) colours() palette {
	if v, set := a.lookup("NO_COLOR"); set && v != "" {
		return palette{}
	}
	if v, _ := a.lookup("TERM"); v == "dumb" {
		return palette{}
	}
	return palette{isTerminal(a.stdout)}
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

func (p palette) paint(code int, s string) string {
	if !p.on {
		return s
	}
	return fmt.Sprintf("\x1b[%dm%s\x1b[0m", code, s)
}

// The colours that mean something: what goes well, what ends, what is wrong.
func (p palette) good(s string) string { return p.paint(32, s) }
func (p palette) dim(s string) string  { return p.paint(2, s) }
func (p palette) bad(s string) string  { return p.paint(31, s) }

// event is the kind of an event.
func (p palette) event(kind string) string {
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
