package safefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Error is a refused or broken operation. errors.Is finds its class, and its
// cause where there is one.
type Error struct {
	// Class is one of containerd/errdefs.
	Class error
	// Field is the part of the request it is about, or empty.
	Field string
	// Message is for people. It names paths by what the caller gave.
	Message string
	cause   error
}

// Error is the message with the field it is about.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + " " + e.Message
}

// Unwrap gives the class and the cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Class}
	}
	return []error{e.Class, e.cause}
}

func invalid(field, format string, args ...any) *Error {
	return &Error{Class: errdefs.ErrInvalidArgument, Field: field, Message: fmt.Sprintf(format, args...)}
}

func outsideRoot(field, p string) *Error {
	return &Error{Class: errdefs.ErrPermissionDenied, Field: field, Message: fmt.Sprintf("%q leads out of the workspace", p)}
}

func notRegular(field, p string) *Error {
	return &Error{Class: errdefs.ErrFailedPrecondition, Field: field, Message: fmt.Sprintf("%q is not a regular file", p)}
}

// newError classes what the kernel or os.Root said.
func newError(op, field, p string, err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		if e.Err.Error() == escapes {
			return outsideRoot(field, p)
		}
		err = e.Err
	}
	class, why := classOf(err)
	if why == "" {
		why = err.Error()
	}
	return &Error{Class: class, Field: field, Message: fmt.Sprintf("%q: %s: %s", p, op, why), cause: err}
}

// escapes is how os.Root says it; the error itself is not exported.
const escapes = "path escapes from parent"

// classOf is the class of an errno, and a better text where there is one.
func classOf(err error) (error, string) {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return errdefs.ErrAborted, ""
	}
	var no unix.Errno
	if !errors.As(err, &no) {
		return errdefs.ErrInternal, ""
	}
	switch no {
	case unix.ENOENT:
		return errdefs.ErrNotFound, "there is no such file or folder"
	case unix.EEXIST:
		return errdefs.ErrAlreadyExists, ""
	case unix.EACCES, unix.EPERM:
		return errdefs.ErrPermissionDenied, ""
	case unix.ENAMETOOLONG, unix.EINVAL:
		return errdefs.ErrInvalidArgument, ""
	case unix.ENOSPC, unix.EDQUOT:
		return errdefs.ErrResourceExhausted, "there is no room left for it"
	case unix.EFBIG, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EMLINK:
		return errdefs.ErrResourceExhausted, ""
	case unix.ENOTEMPTY:
		return errdefs.ErrFailedPrecondition, "the folder is not empty"
	case unix.ENOTDIR:
		return errdefs.ErrFailedPrecondition, "a part of it is not a folder"
	case unix.EAGAIN:
		// The kernel would let the opener wait for as long as the holder of the lease may take.
		return errdefs.ErrFailedPrecondition, "a command has a lease on it"
	case unix.EROFS:
		return errdefs.ErrFailedPrecondition, "it is read-only here"
	case unix.EXDEV:
		return errdefs.ErrFailedPrecondition, "another filesystem is mounted here"
	case unix.EISDIR, unix.ELOOP, unix.ETXTBSY, unix.EBUSY, unix.ENXIO, unix.ENODEV:
		return errdefs.ErrFailedPrecondition, ""
	}
	return errdefs.ErrInternal, ""
}
