package usererror

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// QuotaError reports which quota of a caller is used up. Its class is ResourceExhausted.
type QuotaError struct {
	Quota       string // the name, such as "sandboxes"
	Limit, Used int64
	Unit        string // unit of Limit and Used
	// RetryAfter is the time until the quota is reset, or 0 if the caller has to free something.
	RetryAfter time.Duration
}

// Error implements error. The text is safe for callers.
func (e *QuotaError) Error() string {
	text := fmt.Sprintf("the quota %s is used up: %d of %d %s", e.Quota, e.Used, e.Limit, e.Unit)
	if e.RetryAfter > 0 {
		return text + ": try again in " + e.RetryAfter.Round(time.Second).String()
	}
	return text
}

// Unwrap returns the errdefs class.
func (e *QuotaError) Unwrap() error { return errdefs.ErrResourceExhausted }
