package ui

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// Header is set to "1" by the dashboard's own requests. A form of another page cannot set it, and a
// script of another origin would have to ask first.
const Header = "Orchestrator-UI"

// CheckRequest returns an error of class PermissionDenied unless a request with a session's cookie
// comes from the dashboard. Requests that can change something need Header; all need the service's
// own origin. Pages of another port of the same host are another origin, although they are the same
// site for the cookie.
func CheckRequest(r *http.Request) error {
	refused := usererror.Errorf(errdefs.ErrPermissionDenied,
		"a session is only for the pages of /ui: send a token in the Authorization header")
	switch site := r.Header.Get("Sec-Fetch-Site"); site {
	case "", "same-origin": // browsers leave it out where there is neither TLS nor a loopback address
	case "none": // typed by the person
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			return refused
		}
	default:
		return refused
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch origins := r.Header.Values("Origin"); {
	case len(origins) == 0:
		if !reads {
			return refused
		}
	case len(origins) > 1 || !sameOrigin(origins[0], r.Host):
		return refused
	}
	if !reads && r.Header.Get(Header) != "1" {
		return refused
	}
	return nil
}

func sameOrigin(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}
