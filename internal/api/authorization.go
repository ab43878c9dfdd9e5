package api

import (
	"net/http"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

var (
	// errUnauthenticated has no class in errdefs that means 401 and not 403.
	errUnauthenticated = usererror.Errorf(errdefs.ErrUnauthenticated, "a bearer token is needed")
	errAuthorization   = usererror.Errorf(errdefs.ErrUnauthenticated, "Authorization cannot be used: send one header, \"Authorization: Bearer TOKEN\", or none")
)

// bearerToken returns the token of the Authorization header. given is false if
// there is no such header. Any other form, also several headers, is an error:
// a request that names credentials is never served without them.
func bearerToken(h http.Header) (token string, given bool, err error) {
	values, given := h["Authorization"]
	if !given {
		return "", false, nil
	}
	if len(values) != 1 {
		return "", true, errAuthorization
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	token = strings.TrimLeft(token, " ") // RFC 9110, 11.4: one space or more
	if !strings.EqualFold(scheme, "Bearer") || token == "" || strings.ContainsAny(token, " \t") {
		return "", true, errAuthorization
	}
	return token, true, nil
}
