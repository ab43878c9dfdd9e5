package engine

import (
	"cmp"
	"errors"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/profile"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
)

// ForCallers finds, in an error, the one whose words are for whoever called; nil
// if there is none. The words around it are not: they may name paths of the
// host, or what a driver said.
func ForCallers(err error) error {
	for _, find := range []func(error) error{
		As[*InvalidError], As[*strictjson.FieldError], As[*QuotaError], As[*EmptyError], As[*EndedError], As[*PortError], As[*usererror.Error], As[*safefile.Error], As[*tool.WebError], As[*search.AnswerError], As[*guest.Error],
	} {
		if got := find(err); got != nil {
			return got
		}
	}
	return nil
}

// As is errors.AsType as an error, nil if there is none.
func As[E error](err error) error {
	if e, ok := errors.AsType[E](err); ok {
		return e
	}
	return nil
}

// userMessage are the words of a tool's failure that its caller may read, and else
// only its class.
func userMessage(err error, class string) string {
	if got := ForCallers(err); got != nil {
		return got.Error()
	}
	return class
}

// InputError is what is wrong with a tool's input, with its profile's name of it.
type InputError = profile.InputError

// inputErrorForCaller makes what is wrong with an input readable for its caller.
func inputErrorForCaller(err error) error {
	e, ok := errors.AsType[*InputError](err)
	switch {
	case !ok:
		return err
	case e.Type != "": // in the profile's words, and whole
		return &usererror.Error{Message: e.Message, Class: err}
	}
	return &InvalidError{Field: cmp.Or(e.Field, "input"), Message: e.Message, Class: err}
}
