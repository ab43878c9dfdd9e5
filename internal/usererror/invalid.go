package usererror

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// InvalidError reports an invalid field of a request and the allowed values. Its class is
// InvalidArgument unless Class is set.
type InvalidError struct {
	Field, Message string
	Class          error
}

// Error implements error. The text begins with the field.
func (e *InvalidError) Error() string { return e.Field + " " + e.Message }

// Unwrap returns the errdefs class.
func (e *InvalidError) Unwrap() error {
	if e.Class != nil {
		return e.Class
	}
	return errdefs.ErrInvalidArgument
}

// Invalid returns an *InvalidError of a field. The message says what is wrong and what is allowed.
func Invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Message: fmt.Sprintf(format, args...)}
}
