package safefile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Error is the error of all operations. It unwraps to its class and, if there is one, its cause.
type Error struct {
	// Class is one of containerd/errdefs.
	Class error
	// Field is the request's field that is invalid, or empty.
	Field string
	// Message is for people. It contains paths as the caller gave them.
	Message string
	cause   error
}

// Error implements error: the field and the message.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + " " + e.Message
}

// Unwrap returns the class and the cause.
func (e *Error) Unwrap() []error {
	if e.cause == nil {
		return []error{e.Class}
	}
	return []error{e.Class, e.cause}
}

func invalid(field, format string, args ...any) *Error {
	return &Error{
		Class: errdefs.ErrInvalidArgument, Field: field,
		Message: fmt.Sprintf(format, args...),
	}
}

func outsideRoot(field, p string) *Error {
	return &Error{
		Class: errdefs.ErrPermissionDenied, Field: field,
		Message: fmt.Sprintf("%q leads out of the workspace", p),
	}
}

func notRegular(p string) *Error {
	return &Error{
		Class: errdefs.ErrFailedPrecondition, Field: "path",
		Message: fmt.Sprintf("%q is not a regular file", p),
	}
}

// newError converts an error of the kernel or os.Root.
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

// escapes is the text of os.Root's error, which is not exported.
const escapes = "path escapes from parent"

// classOf returns the class of an errno, and a clearer text if there is one.
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
		return errdefs.ErrNotFound, "no such file or directory"
	case unix.EEXIST:
		return errdefs.ErrAlreadyExists, ""
	case unix.EACCES, unix.EPERM:
		return errdefs.ErrPermissionDenied, ""
	case unix.ENAMETOOLONG, unix.EINVAL:
		return errdefs.ErrInvalidArgument, ""
	case unix.ENOSPC, unix.EDQUOT:
		return errdefs.ErrResourceExhausted, "no space left"
	case unix.EFBIG, unix.EMFILE, unix.ENFILE, unix.ENOMEM, unix.EMLINK:
		return errdefs.ErrResourceExhausted, ""
	case unix.ENOTEMPTY:
		return errdefs.ErrFailedPrecondition, "the directory is not empty"
	case unix.ENOTDIR:
		return errdefs.ErrFailedPrecondition, "a part of the path is not a directory"
	case unix.EAGAIN:
		// Without O_NONBLOCK, the kernel would wait for the lease's holder.
		return errdefs.ErrFailedPrecondition, "a command has a lease on it"
	case unix.EROFS:
		return errdefs.ErrFailedPrecondition, "the file system is read-only"
	case unix.EXDEV:
		return errdefs.ErrFailedPrecondition, "another file system is mounted here"
	case unix.EISDIR, unix.ELOOP, unix.ETXTBSY, unix.EBUSY, unix.ENXIO, unix.ENODEV:
		return errdefs.ErrFailedPrecondition, ""
	}
	return errdefs.ErrInternal, ""
}
