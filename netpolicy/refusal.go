package netpolicy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
)

// Reply codes of SOCKS5 (RFC 1928, section 6).
const (
	socksDone        = 0x00
	socksFailed      = 0x01
	socksDenied      = 0x02
	socksUnreachable = 0x04
	socksRefused     = 0x05
	socksExpired     = 0x06
	socksCommand     = 0x07
	socksAddress     = 0x08
)

// refusal is why a connection was not carried, for HTTP and SOCKS5. The client and the audit log
// get the reason.
type refusal struct {
	status int  // HTTP status
	code   byte // SOCKS5 reply
	reason string
}

// RefusalHeader is set only in answers of the gateway, so that clients can distinguish them from
// servers' answers. Its value is "denied", "url", "connect" or "timeout".
const RefusalHeader = "Orchestrator-Refusal"

// kind returns the value of RefusalHeader.
func (r *refusal) kind() string {
	switch r.status {
	case http.StatusForbidden:
		return "denied"
	case http.StatusGatewayTimeout:
		return "timeout"
	case http.StatusBadGateway, http.StatusServiceUnavailable:
		return "connect"
	}
	return "url"
}

// Error implements error. It returns the reason.
func (r *refusal) Error() string { return r.reason }

func denied(reason string) *refusal {
	return &refusal{http.StatusForbidden, socksDenied, oneLine(reason)}
}

func malformed(format string, args ...any) *refusal {
	return &refusal{http.StatusBadRequest, socksFailed, oneLine(fmt.Sprintf(format, args...))}
}

func overLimit(format string, args ...any) *refusal {
	return &refusal{http.StatusServiceUnavailable, socksFailed, oneLine(fmt.Sprintf(format, args...))}
}

// unreached returns the refusal for a failed connection or exchange. what names the attempt.
func unreached(what string, err error) *refusal {
	var none *mask
	return none.unreached(what, err)
}

// unreached is like the function of this name, with credentials masked: an error may quote the
// server's answer.
func (m *mask) unreached(what string, err error) *refusal {
	var already *refusal
	if errors.As(err, &already) {
		return already
	}
	r := &refusal{http.StatusBadGateway, socksUnreachable, oneLine(m.errorText(what + ": " + plainError(err)))}
	switch {
	case isTimeout(err):
		r.status, r.code = http.StatusGatewayTimeout, socksExpired
	case errors.Is(err, syscall.ECONNREFUSED):
		r.code = socksRefused
	}
	return r
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &t) && t.Timeout()
}

// plainError returns an error's text without the host's addresses, which errors of package net
// contain.
func plainError(err error) string {
	var number syscall.Errno
	var op *net.OpError
	switch {
	case isTimeout(err):
		return "timed out"
	case errors.As(err, &number):
		return number.Error()
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection"
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return err.Error()
}

// oneLine returns s as printable ASCII of limited length, for status lines and the audit.
func oneLine(s string) string {
	const most = 400
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), most)]
}

// forbids reports whether the connection was refused, as opposed to unreachable.
func (r *refusal) forbids() bool {
	return r.status != http.StatusBadGateway && r.status != http.StatusGatewayTimeout
}
