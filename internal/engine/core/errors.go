package core

import (
	"errors"

	"github.com/sandbox-orchestrator/orchestrator/internal/caller"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/safefile"
	"github.com/sandbox-orchestrator/orchestrator/internal/scheduler"
	"github.com/sandbox-orchestrator/orchestrator/internal/strictjson"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
	"github.com/sandbox-orchestrator/orchestrator/internal/web"
	"github.com/sandbox-orchestrator/orchestrator/internal/web/search"
	"github.com/sandbox-orchestrator/orchestrator/pool"
)

// Errors of lower layers that adapters distinguish.
type (
	// EmptyError reports that no sandbox is free, and when to try again.
	EmptyError = pool.EmptyError
	// EndedError reports that the lease is over, and why.
	EndedError = scheduler.EndedError
	// PortError reports that a server in the sandbox cannot be reached.
	PortError = scheduler.PortError
)

// ForCallers returns the first error in err's tree whose text is safe to show to callers, or nil.
// The texts of errors that wrap it may name host paths or quote a driver.
func ForCallers(err error) error {
	for _, find := range []func(error) error{
		As[*usererror.InvalidError], As[*strictjson.FieldError], As[*caller.QuotaError], As[*EmptyError], As[*EndedError],
		As[*PortError], As[*usererror.Error], As[*safefile.Error], As[*web.Fault], As[*search.AnswerError], As[*guest.Error],
	} {
		if got := find(err); got != nil {
			return got
		}
	}
	return nil
}

// As returns the first error of type E in err's tree, or nil.
func As[E error](err error) error {
	if e, ok := errors.AsType[E](err); ok {
		return e
	}
	return nil
}
