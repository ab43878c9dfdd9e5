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
	// hookSlack is how much longer than its own time a hook is waited for.
	hookSlack = 10 * time.Second
	// hookWords is how much of a failed hook's last output an error has.
	hookWords = 2 << 10
	// settleTime is what a hook in the background has at least to show that it
	// stays.
	settleTime = 200 * time.Millisecond
)

// warmUp makes a new sandbox what its template says: what all commands have
// first, then the hooks, in order. An error has the hook's last words.
func (m *member) warmUp(ctx context.Context, t Template) error {
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
	return m.hooksStay(ctx)
}

// runHook runs a hook to its end.
func (m *member) runHook(ctx context.Context, h Hook) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.Timeout+hookSlack, fmt.Errorf("no end within %s: %w", h.Timeout+hookSlack, context.DeadlineExceeded))
	defer cancel()
	id, err := uuid.NewV7()
	if err != nil {
		return err
	}
	words := &tail{}
	r, err := m.guest.Exec(ctx, wire.Command{ID: id.String(), Argv: h.Argv, Timeout: h.Timeout}, guest.IO{Stdout: words, Stderr: words})
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
	}
	if r.Detail != "" {
		how += ", " + r.Detail
	}
	if words = strings.TrimSpace(words); words != "" {
		how += ": " + words
	}
	return fmt.Errorf("%s: %w", how, errdefs.ErrUnavailable)
}

// startHook starts a hook that stays.
func (m *member) startHook(ctx context.Context, h Hook) error {
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

// hooksStay waits a moment and refuses a sandbox in which one that is to stay
// has ended.
func (m *member) hooksStay(ctx context.Context) error {
	if m.hooks == 0 {
		return nil
	}
	select {
	case <-time.After(settleTime):
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
		words := &tail{}
		from := max(sh.Stdout.Start, sh.Stdout.End-hookWords)
		_, err := m.guest.Output(ctx, wire.Output{ID: sh.ID, Stream: wire.Stdout, Offset: from}, func(_ int64, p []byte) error {
			words.Write(p) //nolint:errcheck // it cannot fail
			return nil
		})
		return errors.Join(fmt.Errorf("warm-up in the background (%.200s): %w", strings.Join(sh.Argv, " "), hookError(*sh.Result, words.String())), err)
	}
	return nil
}

// stays counts a template's hooks in the background.
func (t Template) stays() (n int) {
	for _, h := range t.Warmup {
		if h.Background {
			n++
		}
	}
	return n
}

// adoptHooks makes the shells of the warm-up the lease's, before it is handed
// out.
func (s *Scheduler) adoptHooks(ctx context.Context, l *Lease) error {
	if l.member.hooks == 0 {
		return nil
	}
	shells, err := l.member.guest.Shells(ctx)
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

// tail keeps the last hookWords bytes of what is written to it.
type tail struct{ b []byte }

// Write never fails.
func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-hookWords):]...)
	t.b = t.b[max(0, len(t.b)-hookWords):]
	return len(p), nil
}

// String is what was kept as text.
func (t *tail) String() string { return strings.ToValidUTF8(string(t.b), "?") }
