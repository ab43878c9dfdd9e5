package engine

import (
	"errors"

	"orchestrator/internal/guest"
	"orchestrator/internal/safefile"
	"orchestrator/internal/said"
	"orchestrator/internal/strict"
)

// sayable are the words of a tool's failure that its caller may read: those
// that were made for callers, and else only its class.
func sayable(err error, class string) string {
	if e, ok := errors.AsType[*guest.Error](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*strict.FieldError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*InvalidError](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*safefile.Error](err); ok {
		return e.Error()
	}
	if e, ok := errors.AsType[*said.Error](err); ok {
		return e.Error()
	}
	return class
}
