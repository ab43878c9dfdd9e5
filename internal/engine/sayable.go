package engine

import (
	"cmp"
	"errors"

	"orchestrator/internal/guest"
	"orchestrator/internal/profile"
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

// InputError is what is wrong with a tool's input, with its profile's name of it.
type InputError = profile.InputError

// sayInput makes what is wrong with an input readable for its caller.
func sayInput(err error) error {
	e, ok := errors.AsType[*InputError](err)
	switch {
	case !ok:
		return err
	case e.Type != "": // in the profile's words, and whole
		return &said.Error{Message: e.Message, Class: err}
	}
	return &InvalidError{Field: cmp.Or(e.Field, "input"), Message: e.Message, Class: err}
}
