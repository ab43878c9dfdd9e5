package browser

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/sandbox-orchestrator/orchestrator/internal/clip"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
)

// Kinds of faults that only browsers have. Package web defines the others.
const (
	FaultSelector = "selector" // invalid CSS selector
	FaultCrashed  = "crashed"  // the page ran out of memory or ended the browser
	FaultBusy     = "busy"     // scripts of the page block the browser
	FaultSize     = "size"     // the image or PDF is too large
	FaultBrowser  = "browser"  // the browser sent invalid data
)

// Fault explains why Open returns no result. Message is a sentence for the caller.
type Fault struct {
	Kind    string
	Message string
}

// Error implements error.
func (f *Fault) Error() string { return f.Message }

func fault(kind, format string, args ...any) error {
	return &Fault{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// netFaults maps parts of Chromium's network errors to faults. The first match applies.
var netFaults = []struct{ part, kind, message string }{
	{"ERR_TUNNEL_CONNECTION_FAILED", web.FaultDenied, "gateway did not connect to %s"},
	{"ERR_PROXY_CONNECTION_FAILED", web.FaultConnect, "proxy of the sandbox does not answer, for %s"},
	{"ERR_NAME_NOT_RESOLVED", web.FaultName, "%s has no address"},
	{"ERR_CERT_", web.FaultTLS, "certificate of %s is not trusted"},
	{"ERR_SSL_", web.FaultTLS, "TLS handshake with %s failed"},
	{"ERR_TOO_MANY_REDIRECTS", web.FaultRedirect, "%s redirects too often"},
	{"ERR_TIMED_OUT", web.FaultTimeout, "%s took too long"},
	{"ERR_CONNECTION_", web.FaultConnect, "connection to %s failed"},
	{"ERR_EMPTY_RESPONSE", web.FaultProtocol, "%s sent an empty response"},
	{"ERR_INVALID_AUTH_CREDENTIALS", web.FaultContent, "%s requires a user and password"},
	{"ERR_INVALID_", web.FaultProtocol, "%s sent invalid HTTP"},
	{"ERR_RESPONSE_HEADERS", web.FaultProtocol, "%s sent invalid HTTP"},
	{"ERR_CONTENT_", web.FaultProtocol, "%s sent content that does not match its header"},
	{"ERR_INCOMPLETE", web.FaultProtocol, "%s sent less than announced"},
	{"ERR_UNSAFE_PORT", web.FaultURL, "browsers do not connect to the port of %s"},
	{"ERR_BLOCKED_BY_RESPONSE", web.FaultContent, "%s does not allow to be shown"},
	{"ERR_ABORTED", web.FaultContent, "%s is not a page: a download or an empty response"},
}

// netFault returns the fault for a network error of Chromium.
func netFault(text, about string) error {
	for _, f := range netFaults {
		if strings.Contains(text, f.part) {
			return fault(f.kind, f.message+" (%s)", about, clean(text, 100))
		}
	}
	return fault(web.FaultConnect, "%s could not be opened (%s)", about, clean(text, 100))
}

// explain converts an error to a fault. If the time of the page is over, the kind is timeout.
func explain(ctx context.Context, err error, doing string) error {
	for _, err := range []error{err, context.Cause(ctx)} {
		if f, ok := errors.AsType[*Fault](err); ok {
			return f
		}
	}
	switch {
	case errors.Is(context.Cause(ctx), errPageTime):
		return fault(web.FaultTimeout, "%s took longer than the time of the call", doing)
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if lost, ok := errors.AsType[*lostError](err); ok {
		return fault(FaultCrashed,
			"the browser ended while %s: the page may have used up the memory of the sandbox (%s)",
			doing, clean(lost.err.Error(), 200))
	}
	return fault(FaultBrowser, "%s: %s", doing, clean(err.Error(), 300))
}

// clean returns untrusted text as one line of at most most characters.
func clean(s string, most int) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	s, _ = clip.Runes(strings.Join(strings.Fields(s), " "), most)
	return s
}
