package engine

import (
	"cmp"
	"errors"

	"github.com/sandbox-orchestrator/orchestrator/internal/engine/core"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// userMessage returns the caller-safe text of a tool's failure, or only its class.
func userMessage(err error, class string) string {
	if got := core.ForCallers(err); got != nil {
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
