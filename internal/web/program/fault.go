package program

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// maxMessage bounds a fault's text in characters: parts of it are a host's.
const maxMessage = 600

// fault is an error that says what kind of fault it is.
type fault struct {
	kind    string
	message string
}

func (f *fault) Error() string { return f.message }

func faultf(kind, format string, args ...any) error {
	return &fault{kind: kind, message: fmt.Sprintf(format, args...)}
}

// faultOf is what an Answer says of err.
func faultOf(err error) *web.Fault {
	var f *fault
	switch {
	case errors.As(err, &f):
		return &web.Fault{Kind: f.kind, Message: oneLine(f.message, maxMessage)}
	case errors.Is(err, context.DeadlineExceeded):
		return &web.Fault{Kind: web.FaultTimeout, Message: "it took longer than the time that was given"}
	case errors.Is(err, context.Canceled):
		return &web.Fault{Kind: web.FaultTimeout, Message: "it was ended"}
	default:
		return &web.Fault{Kind: web.FaultProgram, Message: oneLine(err.Error(), maxMessage)}
	}
}

// oneLine makes s fit for one line of at most limit characters.
func oneLine(s string, limit int) string {
	s = strings.ToValidUTF8(s, "�")
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	s, cut := firstRunes(s, limit)
	if cut {
		s += "…"
	}
	return s
}

// firstRunes is s, or its first limit characters where it has more.
func firstRunes(s string, limit int) (string, bool) {
	if len(s) <= limit {
		return s, false
	}
	n := 0
	for i := range s {
		if n == limit {
			return s[:i], true
		}
		n++
	}
	return s, false
}
