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
	// ErrLost means that the stream ended before its answer. The request may have been executed,
	// and may still be running.
	ErrLost = errors.New("lost the guest")
	// ErrProtocol means that the guest violated the protocol. It accompanies ErrLost. The sandbox
	// must not be trusted any more.
	ErrProtocol = errors.New("guest violated the protocol")
)

const (
	maxMessage = 2 << 10
	maxField   = 64
)

// Error is a request that the guest refused, or that the client refused before sending it.
type Error struct {
	// Code is the class, as defined by package wire.
	Code wire.Code
	// Field is the invalid part of the request, or empty.
	Field string
	// Message is one line of UTF-8 text, at most 2 KiB.
	Message string
}

// Error implements error. It includes the field.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Unwrap returns the errdefs class.
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

// refusalError converts a Failure of the guest. It limits its texts.
func refusalError(f wire.Failure) *Error {
	e := &Error{Code: f.Code, Field: cleanText(f.Field, maxField), Message: cleanText(f.Message, maxMessage)}
	if e.Unwrap() == errdefs.ErrInternal {
		e.Code = wire.Internal
	}
	if e.Message == "" {
		e.Message = "the guest refused the request without a reason"
	}
	return e
}

// cleanText limits the length of untrusted text and replaces control characters.
func cleanText(s string, limit int) string {
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

// lostError hides its cause from errors.Is. An io.EOF in the cause, for example, is not the end of
// what the caller reads.
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

// lost returns the error of a stream that failed with err.
func lost(op wire.Op, err error) error {
	if errors.Is(err, io.EOF) {
		err = errors.New("the stream ended without an answer")
	}
	if errors.Is(err, wire.ErrTooLarge) || errors.Is(err, wire.ErrKind) {
		err = fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	return &lostError{op: op, cause: err}
}

// protocolError returns the error of a protocol violation by the guest.
func protocolError(op wire.Op, format string, args ...any) error {
	return lost(op, fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...)))
}

func (s *stream) lost(err error) error { return lost(s.op, err) }

func (s *stream) protocolError(format string, args ...any) error {
	return protocolError(s.op, format, args...)
}

// ended returns the error of a call whose context ended.
func (s *stream) ended(ctx context.Context) error {
	return fmt.Errorf("%s: %w", s.op, context.Cause(ctx))
}
