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

// Reply codes of SOCKS5 (RFC 1928, 6).
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

// refusal is why something is not carried, in the words of both proxies. The
// reason goes to whoever asked and into the audit.
type refusal struct {
	status int  // of HTTP
	code   byte // of SOCKS5
	reason string
}

// RefusalHeader is a field of the gateway's own answers, and of no other: so a
// client can tell them from those of servers. Its value is "denied", "url",
// "connect" or "timeout".
const RefusalHeader = "Orchestrator-Refusal"

// kind is the value of RefusalHeader.
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

// Error is the reason.
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

// unreached is what did not come about outside; what says what was attempted.
func unreached(what string, err error) *refusal {
	var none *mask
	return none.unreached(what, err)
}

// unreached is the same for who was sent credentials: an error repeats what was
// not understood.
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

// plainError is an error's text without addresses of the host, which errors of
// package net name.
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

// oneLine makes a text fit for a status line and for the audit: no control
// character, nothing but ASCII, and not long.
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

// forbids says whether it was refused, not merely out of reach.
func (r *refusal) forbids() bool {
	return r.status != http.StatusBadGateway && r.status != http.StatusGatewayTimeout
}
