package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Kinds of faults that only browsers have; the others are those of package web.
const (
	FaultSelector = "selector" // no selector of CSS
	FaultCrashed  = "crashed"  // the page used up its memory, or ended the browser
	FaultBusy     = "busy"     // the page leaves the browser no time to answer
	FaultSize     = "size"     // a picture or PDF over its bound
	FaultBrowser  = "browser"  // the browser does not do as it should
)

// Fault says why there is no result, in a sentence for the caller.
type Fault struct {
	Kind    string
	Message string
}

// Error is the message.
func (f *Fault) Error() string { return f.Message }

func fault(kind, format string, args ...any) error {
	return &Fault{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// netFaults say what Chromium's network errors mean; the first that is a part
// of the text counts.
var netFaults = []struct{ part, kind, message string }{
	{"ERR_TUNNEL_CONNECTION_FAILED", web.FaultDenied, "the gateway did not connect to %s"},
	{"ERR_PROXY_CONNECTION_FAILED", web.FaultConnect, "the sandbox's proxy does not answer, for %s"},
	{"ERR_NAME_NOT_RESOLVED", web.FaultName, "%s has no address"},
	{"ERR_CERT_", web.FaultTLS, "no trust in the certificate of %s"},
	{"ERR_SSL_", web.FaultTLS, "no TLS with %s"},
	{"ERR_TOO_MANY_REDIRECTS", web.FaultRedirect, "%s redirects too often"},
	{"ERR_TIMED_OUT", web.FaultTimeout, "%s took too long"},
	{"ERR_CONNECTION_", web.FaultConnect, "nobody answers at %s"},
	{"ERR_EMPTY_RESPONSE", web.FaultProtocol, "%s answers with nothing"},
	{"ERR_INVALID_AUTH_CREDENTIALS", web.FaultContent, "%s asks for a user and a password"},
	{"ERR_INVALID_", web.FaultProtocol, "what %s answers is not HTTP"},
	{"ERR_RESPONSE_HEADERS", web.FaultProtocol, "what %s answers is not HTTP"},
	{"ERR_CONTENT_", web.FaultProtocol, "%s sends other than it says"},
	{"ERR_INCOMPLETE", web.FaultProtocol, "%s sends less than it says"},
	{"ERR_UNSAFE_PORT", web.FaultURL, "browsers do not connect to the port of %s"},
	{"ERR_BLOCKED_BY_RESPONSE", web.FaultContent, "%s forbids to be shown"},
	{"ERR_ABORTED", web.FaultContent, "%s is no page: a download, or nothing at all"},
}

// netFault is Chromium's error about an address as a fault.
func netFault(text, about string) error {
	for _, f := range netFaults {
		if strings.Contains(text, f.part) {
			return fault(f.kind, f.message+" (%s)", about, clean(text, 100))
		}
	}
	return fault(web.FaultConnect, "%s could not be opened (%s)", about, clean(text, 100))
}

// explain makes a fault of what went wrong. The context's end is the fault
// "timeout" where it was the page's time.
func explain(ctx context.Context, err error, doing string) error {
	for _, err := range []error{err, context.Cause(ctx)} {
		if f, ok := errors.AsType[*Fault](err); ok {
			return f
		}
	}
	switch {
	case errors.Is(context.Cause(ctx), errPageTime):
		return fault(web.FaultTimeout, "%s took longer than the call's time", doing)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if lost, ok := errors.AsType[*lostError](err); ok {
		return fault(FaultCrashed, "the browser went away %s: the page may have used up the sandbox's memory (%s)", doing, clean(lost.err.Error(), 200))
	}
	return fault(FaultBrowser, "%s: %s", doing, clean(err.Error(), 300))
}

// clean makes a text of somebody else's one short line.
func clean(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	return cut(strings.Join(strings.Fields(s), " "), most)
}

// cut is at most so many characters of a text.
func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	n := 0
	for i := range s {
		if n == most {
			return s[:i]
		}
		n++
	}
	return s
}
