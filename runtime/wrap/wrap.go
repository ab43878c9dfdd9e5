package wrap

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// Timeouts bounds the calls of a driver and its sandboxes. Zero means the default.
type Timeouts struct {
	Prepare time.Duration
	Create  time.Duration
	List    time.Duration
	Open    time.Duration
	// Bind applies to Bind and Unbind, Remove to Remove and Destroy, Adopt to Adopt.
	Bind   time.Duration
	Remove time.Duration
	Adopt  time.Duration
	// Figures applies to the figures of one sandbox.
	Figures time.Duration
}

// Default timeouts. They are generous: they guard against an engine that never answers.
const (
	DefaultPrepare = 5 * time.Minute // loads an image into the engine
	DefaultCreate  = time.Minute
	DefaultList    = 30 * time.Second
	DefaultOpen    = 30 * time.Second
	DefaultBind    = 30 * time.Second
	DefaultRemove  = time.Minute
	DefaultAdopt   = 30 * time.Second
	DefaultFigures = 5 * time.Second
)

func (t Timeouts) of(op string) time.Duration {
	switch op {
	case Prepare:
		return or(t.Prepare, DefaultPrepare)
	case Create:
		return or(t.Create, DefaultCreate)
	case List:
		return or(t.List, DefaultList)
	case Open:
		return or(t.Open, DefaultOpen)
	case Bind, Unbind:
		return or(t.Bind, DefaultBind)
	case Remove, Destroy:
		return or(t.Remove, DefaultRemove)
	case Figures:
		return or(t.Figures, DefaultFigures)
	default:
		return or(t.Adopt, DefaultAdopt)
	}
}

func or(d, def time.Duration) time.Duration {
	if d == 0 {
		return def
	}
	return d
}

// Timeout bounds each call by a deadline. A call that exceeds it fails with class Unavailable, not
// with the class of a deadline, since the caller's own time is not over. The driver must honour its
// context.
func Timeout(d runtime.Driver, times Timeouts) runtime.Driver {
	return &driver{Driver: d,
		intercept: func(ctx context.Context, op, subject string, do func(context.Context) error) error {
			limit := times.of(op)
			ours := fmt.Errorf("%s %s: no answer for %s: %w", op, subject, limit, errdefs.ErrUnavailable)
			bounded, cancel := context.WithTimeoutCause(ctx, limit, ours)
			defer cancel()
			err := do(bounded)
			if err != nil && ctx.Err() == nil && errors.Is(context.Cause(bounded), ours) {
				return fmt.Errorf("%w: %v", ours, err) //nolint:errorlint // see above: the inner class must not show
			}
			return err
		}}
}

// Log writes one debug line per call and passes the same values to observe, unless it is nil, for
// metrics. It does not report errors: the caller does.
func Log(d runtime.Driver, log *slog.Logger,
	observe func(driver, op string, took time.Duration, err error)) runtime.Driver {
	name := d.Name()
	return &driver{Driver: d,
		intercept: func(ctx context.Context, op, subject string, do func(context.Context) error) error {
			began := time.Now()
			err := do(ctx)
			took := time.Since(began)
			if observe != nil {
				observe(name, op, took, err)
			}
			attrs := []slog.Attr{slog.String("driver", name), slog.String("op", op), slog.String("subject", subject),
				slog.Duration("duration", took)}
			if err != nil {
				attrs = append(attrs, slog.Any("error", err))
			}
			log.LogAttrs(ctx, slog.LevelDebug, "driver call", attrs...)
			return err
		}}
}

// Limit lets at most n calls of Create run at once. Others wait until their context ends.
func Limit(d runtime.Driver, n int) runtime.Driver {
	if n < 1 {
		n = 1
	}
	turns := make(chan struct{}, n)
	return &driver{Driver: d,
		intercept: func(ctx context.Context, op, subject string, do func(context.Context) error) error {
			if op != Create {
				return do(ctx)
			}
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
				return do(ctx)
			case <-ctx.Done():
				return fmt.Errorf("%s %s: waiting for one of %d turns: %w", op, subject, n, context.Cause(ctx))
			}
		}}
}
