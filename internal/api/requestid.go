package api

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net/http"
	"regexp"
	"strings"

	"github.com/sandbox-orchestrator/orchestrator/internal/tracing"
)

// headerRequest has the id of a request, in every answer. A client or proxy may choose it.
const headerRequest = "X-Request-Id"

var requestIDs = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// requestID returns the id that a request has, or a new one.
func requestID(r *http.Request) string {
	if given := r.Header.Values(headerRequest); len(given) == 1 && requestIDs.MatchString(given[0]) {
		return given[0]
	}
	return "r-" + strings.ToLower(rand.Text()[:16])
}

type requestKey struct{}

// number gives the request its id, in the answer and for logger.
func (a *answer) number(r *http.Request) *http.Request {
	a.request = requestID(r)
	a.Header().Set(headerRequest, a.request)
	return r.WithContext(context.WithValue(r.Context(), requestKey{}, a.request))
}

// logger returns the server's log with the ids of the request and of its trace.
func (s *Server) logger(r *http.Request) *slog.Logger {
	log := tracing.Logger(r.Context(), s.log)
	if id, ok := r.Context().Value(requestKey{}).(string); ok {
		return log.With("request", id)
	}
	return log
}
