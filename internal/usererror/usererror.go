// Package usererror defines errors that are safe to show to callers. Their text contains only what
// the caller sent, owns or can change. Other errors may contain host paths, names of other callers
// or output of a driver; adapters show those only to operators.
package usererror

import (
	"fmt"
	"time"
)

// Error is an error that is safe to show to callers.
type Error struct {
	// Message is the text for callers.
	Message string
	// Class is a class of containerd/errdefs.
	Class error
	// RetryAfter is when to try again, or 0 if that is not known.
	RetryAfter time.Duration
}

// Errorf returns an Error with a class.
func Errorf(class error, format string, args ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, args...), Class: class}
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the errdefs class.
func (e *Error) Unwrap() error { return e.Class }
