//go:build integration

package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/client"
	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// talk uses state that lasts between calls: a session in one lease, a terminal in the next. It
// leaves half of them running when the lease ends.
func (l *load) talk(ctx context.Context, id string, n int64) error {
	if n%2 == 0 {
		return l.session(ctx, id, n)
	}
	return l.terminal(ctx, id, n)
}

// session uses a shell session, and ends it in every other call.
func (l *load) session(ctx context.Context, id string, n int64) error {
	s, _, err := l.client.StartSession(ctx, id, v1.ShellSessionRequest{})
	if err != nil {
		return err
	}
	for _, step := range []struct{ command, want string }{
		{"cd /tmp; f() { echo \"$1 in $PWD\"; }; sleep 600 &", ""},
		{"f here", "here in /tmp\n"},
	} {
		r, err := s.Run(ctx, step.command)
		c := command{exec: v1.Exec{Command: step.command}, ending: "exited", stdout: int64(len(step.want))}
		if err := c.judge(r, err); err != nil {
			return err
		}
		if r.Stdout != step.want {
			return fmt.Errorf("session: %q wrote %q", step.command, r.Stdout)
		}
	}
	if n%4 == 0 {
		_, err = s.End(ctx)
	}
	return err
}

// terminal uses a terminal, and ends it in every other call.
func (l *load) terminal(ctx context.Context, id string, n int64) error {
	t, err := l.client.OpenTerminal(ctx, id, v1.TerminalRequest{Argv: []string{"bash", "--norc"}, Cols: 100, Rows: 30},
		client.TerminalOptions{})
	if err != nil {
		return err
	}
	defer t.Close()
	if _, err := t.Write([]byte("sleep 600 & stty size\n")); err != nil {
		return err
	}
	if err := until(ctx, t, "30 100"); err != nil {
		return err
	}
	if n%4 == 1 {
		return nil // it lives until its lease ends
	}
	if _, err := t.Write([]byte("exit 7\n")); err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, t); err != nil {
		return err
	}
	r, err := t.Wait()
	c := command{exec: v1.Exec{Command: "a terminal"}, ending: "exited", code: 7, stdout: -1}
	return c.judge(r, err)
}

// until reads until it has seen a word. If the terminal cannot be read any more, waiting for it
// returns the reason.
func until(ctx context.Context, t *client.Terminal, word string) error {
	stop := context.AfterFunc(ctx, func() { t.Close() })
	defer stop()
	var seen strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(seen.String(), word) {
		n, err := t.Read(buf)
		seen.Write(buf[:n])
		if errors.Is(err, io.EOF) {
			var r v1.ExecResult
			if r, err = t.Wait(); err == nil {
				err = command{exec: v1.Exec{Command: "a terminal"}, ending: "never"}.judge(r, nil)
			}
		}
		if err != nil {
			return fmt.Errorf("terminal, after %q: %w", seen.String(), err)
		}
	}
	return nil
}

// discard checks what an overlay lease left and removes it, also across a restart of the service.
func (l *load) discard(ctx context.Context, id string, written bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTime)
	defer cancel()
	for {
		d, err := l.client.Overlays.Diff(ctx, id, true)
		if err == nil && written && d.Added == 0 {
			return fmt.Errorf("overlay %s has nothing of what was written: %+v", id, d)
		}
		if err == nil {
			err = l.client.Overlays.Discard(ctx, id, false)
		}
		if err == nil || errdefs.IsNotFound(err) {
			return nil
		}
		if !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) && !errors.Is(err, client.ErrNoServer) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
