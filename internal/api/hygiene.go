package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"

	"github.com/containerd/errdefs"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
	"github.com/sandbox-orchestrator/orchestrator/internal/engine"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// general says of each code what everybody may know.
var general = map[string]string{
	"invalid_argument":    "the request cannot be used",
	"unauthenticated":     "a good bearer token is needed",
	"permission_denied":   "this is not allowed",
	"not_found":           "there is no such thing, or it is not yours",
	"already_exists":      "it is there already",
	"failed_precondition": "this cannot be done as things are",
	"resource_exhausted":  "there is no room for this now: try again later",
	"not_implemented":     "this service cannot do this",
	"unavailable":         "the service cannot do this now: try again later",
	"deadline_exceeded":   "this took too long",
	"internal":            "the service could not do this",
}

// seen is an error as its caller may see it. Operators see all of it. Others see
// what was said to them, or a general sentence with a reference under which the
// log has the rest.
func seen(principal engine.Principal, log *slog.Logger, err error) error {
	if err == nil || principal.Operator {
		return err
	}
	if got := cmp.Or(engine.As[*bodyError](err), engine.ForCallers(err)); got != nil {
		return got
	}
	p := problem(err)
	ref := "e-" + rand.Text()[:12]
	level := slog.LevelWarn
	if errors.Is(err, context.Canceled) {
		level = slog.LevelDebug // the client went away
	}
	log.Log(context.Background(), level, "error not shown to its caller", "reference", ref, "caller", principal.Caller, "code", p.Code, "error", err)
	var class error = errdefs.ErrInternal
	for _, c := range classes {
		if c.code == p.Code && c.is(err) {
			class = c.text
		}
	}
	return usererror.Errorf(class, "%s; the service's log has the reason under %s", general[p.Code], ref)
}

// told is the problem that stands for an error in an answer that has begun.
func told(w any, err error) *v1.Problem {
	if a, ok := w.(*answer); ok && a.seen != nil {
		err = a.seen(err)
	} else {
		err = seen(engine.Principal{}, slog.New(slog.DiscardHandler), err)
	}
	return problem(err)
}
