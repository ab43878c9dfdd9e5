package tool

import (
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// OutputRequest selects a part of a shell's output.
type OutputRequest struct {
	Stream string // "stdout" (the default) or "stderr"
	Offset int64
	Limit  int64
	Wait   time.Duration
	Follow bool // until the stream ends
}

// Validate sets the default stream and returns an *InvalidError for an invalid field.
func (r *OutputRequest) Validate() error {
	if r.Stream == "" {
		r.Stream = string(wire.Stdout)
	}
	switch {
	case r.Stream != string(wire.Stdout) && r.Stream != string(wire.Stderr):
		return usererror.Invalid("stream", "is %q: use stdout or stderr", r.Stream)
	case r.Offset < 0:
		return usererror.Invalid("offset", "is negative")
	case r.Limit < 0:
		return usererror.Invalid("limit", "is negative")
	case r.Wait < 0 || r.Wait > maxWait:
		return usererror.Invalid("wait_ms", "is %d: from 0 to %d", r.Wait.Milliseconds(), maxWait.Milliseconds())
	}
	return nil
}
