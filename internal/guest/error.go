package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

var (
	// ErrLost: the stream ended before its answer did. What was asked for may
	// have been carried out or not, and may still be going on.
	ErrLost = errors.New("lost the guest")
	// ErrProtocol: the guest sent what it may not. It comes with ErrLost, and
	// the sandbox is not to be trusted any more.
	ErrProtocol = errors.New("guest broke the protocol")
)

const (
	maxMessage = 2 << 10
	maxField   = 64
)

// Error is a request that the guest, or the client for it, refused.
type Error struct {
	// Code is the class, one of those of the wire package.
	Code wire.Code
	// Field is the part of the request that it is about, or empty.
	Field string
	// Message is for people: one line of UTF-8, at most 2 KiB.
	Message string
}

// Error is the message with the field it is about.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Unwrap gives the class of containerd/errdefs.
func (e *Error) Unwrap() error {
	switch e.Code {
	case wire.InvalidArgument:
		return errdefs.ErrInvalidArgument
	case wire.NotFound:
		return errdefs.ErrNotFound
	case wire.AlreadyExists:
		return errdefs.ErrAlreadyExists
	case wire.FailedPrecondition:
		return errdefs.ErrFailedPrecondition
	case wire.ResourceExhausted:
		return errdefs.ErrResourceExhausted
	case wire.PermissionDenied:
		return errdefs.ErrPermissionDenied
	case wire.Unavailable:
		return errdefs.ErrUnavailable
	}
	return errdefs.ErrInternal
}

// refused takes a Failure of the guest's. Only its words are taken, and those
// within bounds.
func refused(f wire.Failure) *Error {
	e := &Error{Code: f.Code, Field: text(f.Field, maxField), Message: text(f.Message, maxMessage)}
	if e.Unwrap() == errdefs.ErrInternal {
		e.Code = wire.Internal
	}
	if e.Message == "" {
		e.Message = "the guest refused without a reason"
	}
	return e
}

// text bounds foreign text and keeps it to one line that moves no cursor.
func text(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, ""))
}

// lostError hides what the cause is from errors.Is where that would mislead:
// an io.EOF in it is not the end of what the caller reads.
type lostError struct {
	op    wire.Op
	cause error
}

func (e *lostError) Error() string { return fmt.Sprintf("%s: %v: %v", e.op, ErrLost, e.cause) }

func (e *lostError) Unwrap() []error {
	all := []error{ErrLost, errdefs.ErrUnavailable}
	if errors.Is(e.cause, ErrProtocol) {
		all = append(all, ErrProtocol)
	}
	return all
}

// lost is the error of a stream that broke with err.
func lost(op wire.Op, err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the stream ended without an answer")
	}
	if errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrKind) {
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return &lostError{op: op, cause: err}
}

// broke is the error of a guest that sent what it may not.
func broke(op wire.Op, format string, args ...any) error {
	return lost(op, fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...)))
}

func (s *stream) lost(err error) error { return lost(s.op, err) }

func (s *stream) broke(format string, args ...any) error { return broke(s.op, format, args...) }

// ended is the error of a call whose context ended.
func (s *stream) ended(ctx context.Context) error {
	return fmt.Errorf("%s: %w", s.op, context.Cause(ctx))
}
