package web

import (
	"context"

	"github.com/containerd/errdefs"
)

// Kinds of a Fault.
const (
	FaultRequest  = "request"  // the Request is invalid
	FaultURL      = "url"      // the URL is not allowed: scheme, user or host
	FaultDenied   = "denied"   // denied by the egress rules; Message has the reason
	FaultName     = "name"     // the host has no address
	FaultConnect  = "connect"  // the host does not accept the connection
	FaultTLS      = "tls"      // untrusted certificate, or no TLS
	FaultTimeout  = "timeout"  // took longer than TimeoutMS
	FaultProtocol = "protocol" // invalid HTTP, or wrong length
	FaultRedirect = "redirect" // too many redirects, or an invalid target
	FaultContent  = "content"  // the content cannot have the requested form
	FaultProgram  = "program"  // guest-web failed
)

// Fault explains why the answer is incomplete. Message is a sentence for the caller.
type Fault struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// Error implements error.
func (f *Fault) Error() string { return f.Message }

// Unwrap returns the errdefs class.
func (f *Fault) Unwrap() error {
	switch f.Kind {
	case FaultURL, FaultContent, FaultRequest:
		return errdefs.ErrInvalidArgument
	case FaultDenied:
		return errdefs.ErrPermissionDenied
	case FaultName:
		return errdefs.ErrNotFound
	case FaultTimeout:
		return context.DeadlineExceeded
	case FaultProgram:
		return errdefs.ErrInternal
	}
	return errdefs.ErrUnavailable
}
