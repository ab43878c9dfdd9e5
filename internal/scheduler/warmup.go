package scheduler

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/uuid"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/store"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// hookSlack is added to a hook's timeout to wait for its result.
	hookSlack = 10 * time.Second
	// hookOutputMax bounds the output of a failed hook in its error, in bytes.
	hookOutputMax = 2 << 10
	// hookSettleTime is how long a background hook must run to count as started.
	hookSettleTime = 200 * time.Millisecond
)

// warmUp sets the template's defaults for commands and runs its hooks in order. An error contains
// the end of the hook's output.
func (m *instance) warmUp(ctx context.Context, t Template) error {
	if len(t.Env) > 0 || t.User != "" {
		if err := m.guest.Base(ctx, wire.Base{Env: t.Env, User: t.User}); err != nil {
			return fmt.Errorf("template %s: %w", t.Name, err)
		}
	}
	for i, h := range t.Warmup {
		var err error
		if h.Background {
			err = m.startHook(ctx, h)
		} else {
			err = m.runHook(ctx, h)
		}
		if err != nil {
			return fmt.Errorf("warm-up %d (%s): %w", i+1, h.Argv[0], err)
		}
	}
	return m.checkBackgroundHooks(ctx)
}

// runHook runs a hook and waits for it.
func (m *instance) runHook(ctx context.Context, h Hook) error {
	ctx, cancel := context.WithTimeoutCause(
		ctx,
		h.Timeout+hookSlack,
		fmt.Errorf("no end within %s: %w", h.Timeout+hookSlack, context.DeadlineExceeded),
	)
	defer cancel()
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	words := &tailBuffer{}
	r, err := m.guest.Exec(
		ctx,
		wire.Command{ID: id.String(), Argv: h.Argv, Timeout: h.Timeout},
		guest.IO{Stdout: words, Stderr: words},
	)
	if err != nil {
		return err
	}
	if r.Ending == runtime.Exited && r.ExitCode == 0 {
		return nil
	}
	return hookError(r, words.String())
}

func hookError(r runtime.Result, words string) error {
	how := string(r.Ending)
	switch r.Ending {
	case runtime.Exited:
		how = fmt.Sprintf("exited with %d", r.ExitCode)
	case runtime.Signalled:
		how = fmt.Sprintf("ended by signal %d", r.Signal)
	default: // the name of the ending says enough
	}
	if r.Detail != "" {
		how += ", " + r.Detail
	}
	if words = strings.TrimSpace(words); words != "" {
		how += ": " + words
	}
	return fmt.Errorf("%s: %w", how, errdefs.ErrUnavailable)
}

// startHook starts a background hook.
func (m *instance) startHook(ctx context.Context, h Hook) error {
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	_, err = m.guest.Start(ctx, wire.Command{ID: id.String(), Argv: h.Argv, MergeStderr: true})
	if err == nil {
		m.hooks++
	}
	return err
}

// checkBackgroundHooks waits for hookSettleTime and returns an error if a background hook has
// ended.
func (m *instance) checkBackgroundHooks(ctx context.Context) error {
	if m.hooks == 0 {
		return nil
	}
	select {
	case <-time.After(hookSettleTime):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	shells, err := m.guest.Shells(ctx)
	if err != nil {
		return err
	}
	for _, sh := range shells {
		if sh.Result == nil {
			continue
		}
		words := &tailBuffer{}
		from := max(sh.Stdout.Start, sh.Stdout.End-hookOutputMax)
		_, err := m.guest.Output(
			ctx,
			wire.Output{ID: sh.ID, Stream: wire.Stdout, Offset: from},
			func(_ int64, p []byte) error {
				words.Write(p) //nolint:errcheck // it cannot fail
				return nil
			},
		)
		return errors.Join(
			fmt.Errorf(
				"warm-up in the background (%.200s): %w",
				strings.Join(sh.Argv, " "),
				hookError(*sh.Result, words.String()),
			),
			err,
		)
	}
	return nil
}

// backgroundHooks returns the number of background hooks.
func (t Template) backgroundHooks() (n int) {
	for _, h := range t.Warmup {
		if h.Background {
			n++
		}
	}
	return n
}

// recordHookShells stores the background hooks as shells of the lease, before it is handed out.
func (s *Scheduler) recordHookShells(ctx context.Context, l *Lease) error {
	if l.instance.hooks == 0 {
		return nil
	}
	shells, err := l.instance.guest.Shells(ctx)
	if err != nil {
		return fmt.Errorf("shells of the warm-up: %w", err)
	}
	for _, sh := range shells {
		row := store.Shell{ID: sh.ID, Sandbox: l.ID, Caller: l.Caller, Argv: sh.Argv, Started: sh.StartedAt}
		if err := s.opts.Store.InsertShell(ctx, row); err != nil {
			return fmt.Errorf("shells of the warm-up: %w", err)
		}
	}
	return nil
}

// tailBuffer keeps the last hookOutputMax bytes that are written to it.
type tailBuffer struct{ b []byte }

// Write implements io.Writer and never fails.
func (t *tailBuffer) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-hookOutputMax):]...)
	t.b = t.b[max(0, len(t.b)-hookOutputMax):]
	return len(p), nil
}

// String returns the kept bytes as valid UTF-8.
func (t *tailBuffer) String() string { return strings.ToValidUTF8(string(t.b), "?") }
