// Package webtool defines the web tools: web.fetch, http.request, web.search and browser.open. It
// checks and limits calls, and shapes their results.
//
// The package contacts no host. An [Exchanger] or an [Opener] does, in a sandbox.
package webtool

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/tool"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/cache"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/reach"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
	"github.com/sandbox-orchestrator/orchestrator/netpolicy"
)

// Tools returns the web tools.
func Tools() []*tool.Tool { return []*tool.Tool{browserOpen, httpRequest, webFetch, webSearch} }

// Exchanger makes exchanges with external hosts.
type Exchanger interface {
	// Exchange runs the web program in a separate, fresh sandbox. An answer with a Fault is not an
	// error.
	Exchange(ctx context.Context, x Exchange) (web.Answer, error)
}

// Exchange is one use of the web program. It may contact the hosts in Scope.
type Exchange struct {
	Request web.Request
	Scope   reach.Scope
	Secrets []netpolicy.Secret
}

// Web is what a call of web.fetch, http.request or web.search needs.
type Web struct {
	Host
	Exchanger Exchanger
	// Owner identifies the caller and its rights: owners share no cached answers. Caller identifies
	// the caller alone: cache limits apply per caller.
	Owner, Caller string
}

// Host holds the service's resources for all calls. It is safe for concurrent use.
type Host struct {
	// Fetch and Request limit web.fetch and http.request for all callers.
	Fetch, Request *reach.Limit
	// Cache holds the answers of web.fetch.
	Cache *cache.Cache
	// Extract answers a prompt about a text. If nil, passages are ranked instead.
	Extract Extractor
	// Search is nil if no provider is configured.
	Search *search.Provider
}

// Extractor is a language model. Its errors are safe to show to callers.
type Extractor interface {
	Name() string
	Extract(ctx context.Context, prompt, address, text string) (string, error)
}

// ask makes the exchange and returns a fault as an error.
func ask(ctx context.Context, e Exchanger, x Exchange) (web.Answer, error) {
	a, err := e.Exchange(ctx, x)
	if err != nil || a.Fault == nil {
		return a, err
	}
	f := *a.Fault
	if f.Kind == web.FaultDenied {
		f.Message = x.Scope.Reason(f.Message)
	}
	return a, &f
}

// textLimit returns the maximum number of characters for a call: the requested, the profile's or
// the usual one.
func textLimit(c tool.Caps, field string, asked, usual int) (int, error) {
	if most := c.Web.MaxText; most > 0 && asked > most {
		return 0, tool.Invalid(field, "is %d: at most %d", asked, most)
	}
	return cmp.Or(asked, c.Web.MaxText, usual), nil
}

const maxTime = 5 * time.Minute

// timeout returns the time-out of a call: the requested, the profile's or the usual one.
func timeout(c tool.Caps, asked int64, usual time.Duration) (time.Duration, error) {
	limit := cmp.Or(c.MaxTimeout, maxTime)
	if asked == 0 {
		asked = cmp.Or(c.Timeout, usual).Milliseconds()
	}
	if most := limit.Milliseconds(); asked > most { // compare before converting: a Duration could overflow
		if !c.Clamp {
			return 0, tool.Invalid("timeout_ms", "is %d: at most %d", asked, most)
		}
		return limit, nil
	}
	return time.Duration(asked) * time.Millisecond, nil
}

// late returns the outcome of a call that timed out, or nil for any other error.
func late(err error, limit time.Duration) *tool.Outcome {
	f, ok := errors.AsType[*web.Fault](err)
	if !ok || f.Kind != web.FaultTimeout {
		return nil
	}
	return &tool.Outcome{
		Ending: "timeout", ExitCode: -1, Detail: f.Message, Duration: limit, TimeoutMS: limit.Milliseconds(),
	}
}

const maxAddress = 8 << 10

// address parses a caller's URL. An error names the field url.
func address(s string) (*url.URL, error) {
	if s == "" {
		return nil, tool.Invalid("url", "is empty")
	}
	if len(s) > maxAddress {
		return nil, tool.Invalid("url", "is %d bytes long: at most %d", len(s), maxAddress)
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '\\' }) {
		return nil, tool.Invalid("url", "has a space, a backslash or a control character: write them as %%20, %%5C …")
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return nil, tool.Invalid("url", "is not a valid URL: use https://host/path")
	case u.Scheme != "http" && u.Scheme != "https":
		return nil, tool.Invalid("url", "has to begin with https:// or http://")
	case u.User != nil:
		return nil, tool.Invalid("url", "has a user or a password before the host: leave it out")
	case u.Opaque != "" || u.Hostname() == "":
		return nil, tool.Invalid("url", "names no host: write https://host/path")
	}
	host, addr, err := netpolicy.CanonicalHost(u.Hostname())
	if err != nil {
		return nil, tool.Invalid("url", "names a host that cannot be asked: %s", err)
	}
	if addr.Is6() {
		host = "[" + host + "]"
	}
	if port := u.Port(); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, tool.Invalid("url", "has the port %s: from 1 to 65535", port)
		}
		host += ":" + port
	} else if strings.HasSuffix(u.Host, ":") {
		return nil, tool.Invalid("url", "has a colon and no port behind its host")
	}
	u.Host, u.Fragment, u.RawFragment = host, "", ""
	return u, nil
}
