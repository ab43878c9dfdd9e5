// Package usererror is the error whose words are for whoever called: they name
// nothing but what the caller gave, owns, or can change. All other errors may
// hold paths of the host, names of others or what a driver said; an adapter
// shows those to operators only. It starts no goroutine.
package usererror

import "fmt"

// Error is such an error.
type Error struct {
	Message string
	// Class is one of containerd/errdefs.
	Class error
}

// Errorf makes one of a class.
func Errorf(class error, format string, args ...any) *Error {
	return &Error{Message: fmt.Sprintf(format, args...), Class: class}
}

// Error is the message.
func (e *Error) Error() string { return e.Message }

// Unwrap gives the class.
func (e *Error) Unwrap() error { return e.Class }
