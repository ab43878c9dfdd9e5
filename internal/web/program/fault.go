package program

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// maxMessage is the maximum length of a fault message in characters, as it may contain text of a
// host.
const maxMessage = 600

// fault is an error with the kind of a web.Fault.
type fault struct {
	kind    string
	message string
}

func (f *fault) Error() string { return f.message }

func faultf(kind, format string, args ...any) error {
	return &fault{kind: kind, message: fmt.Sprintf(format, args...)}
}

// faultOf converts an error to the Fault of an Answer.
func faultOf(err error) *web.Fault {
	var f *fault
	switch {
	case errors.As(err, &f):
		return &web.Fault{Kind: f.kind, Message: oneLine(f.message, maxMessage)}
	case errors.Is(err, context.DeadlineExceeded):
		return &web.Fault{Kind: web.FaultTimeout, Message: "time limit of the request exceeded"}
	case errors.Is(err, context.Canceled):
		return &web.Fault{Kind: web.FaultTimeout, Message: "request cancelled"}
	default:
		return &web.Fault{Kind: web.FaultProgram, Message: oneLine(err.Error(), maxMessage)}
	}
}

// oneLine returns s as one line of at most limit characters.
func oneLine(s string, limit int) string {
	s = strings.ToValidUTF8(s, "�")
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	s, cut := clip.Runes(s, limit)
	if cut {
		s += "…"
	}
	return s
}
