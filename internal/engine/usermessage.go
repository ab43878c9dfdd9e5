package engine

import (
	"cmp"
	"errors"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
)

// ForCallers returns the first error in err's tree whose text is safe to show to callers, or nil.
// The texts of errors that wrap it may name host paths or quote a driver.
func ForCallers(err error) error {
	for _, find := range []func(error) error{
		As[*usererror.InvalidError], As[*strictjson.FieldError], As[*caller.QuotaError], As[*EmptyError], As[*EndedError], As[*PortError], As[*usererror.Error], As[*safefile.Error], As[*tool.WebError], As[*search.AnswerError], As[*guest.Error],
	} {
		if got := find(err); got != nil {
			return got
		}
	}
	return nil
}

// As returns the first error of type E in err's tree, or nil.
func As[E error](err error) error {
	if e, ok := errors.AsType[E](err); ok {
		return e
	}
	return nil
}

// userMessage returns the caller-safe text of a tool's failure, or only its class.
func userMessage(err error, class string) string {
	if got := ForCallers(err); got != nil {
		return got.Error()
	}
	return class
}

// InputError reports an invalid tool input by the profile's names.
type InputError = profile.InputError

// inputErrorForCaller converts an invalid tool input to a caller-safe error.
func inputErrorForCaller(err error) error {
	e, ok := errors.AsType[*InputError](err)
	switch {
	case !ok:
		return err
	case e.Type != "": // the profile defines the whole message
		return &usererror.Error{Message: e.Message, Class: err}
	}
	return &usererror.InvalidError{Field: cmp.Or(e.Field, "input"), Message: e.Message, Class: err}
}
