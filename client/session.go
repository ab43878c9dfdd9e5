package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Session is a shell in a sandbox that keeps its state between commands: working directory,
// variables, functions, aliases and options. Commands run one at a time. A Session is safe for
// concurrent use.
type Session struct {
	// Sandbox and ID identify the session.
	Sandbox, ID string
	client      *Client
}

// StartSession starts a session in a leased sandbox.
func (c *Client) StartSession(
	ctx context.Context,
	sandbox string,
	r v1.ShellSessionRequest,
	opts ...Option,
) (*Session, v1.ShellSession, error) {
	got, err := callJSONWithBody[v1.ShellSession](
		ctx,
		c,
		newCall(http.MethodPost, "sandboxes", sandbox, "sessions"),
		r,
		opts,
	)
	if err != nil {
		return nil, got, err
	}
	return c.Session(sandbox, got.ID), got, nil
}

// Session returns a handle for an existing session. It sends no request: a wrong id is reported by
// the first command.
func (c *Client) Session(sandbox, id string) *Session {
	return &Session{Sandbox: sandbox, ID: id, client: c}
}

// Sessions lists a sandbox's sessions, oldest first.
func (c *Client) Sessions(ctx context.Context, sandbox string) ([]v1.ShellSession, error) {
	l, err := callJSON[v1.List[v1.ShellSession]](ctx, c, newCall(http.MethodGet, "sandboxes", sandbox, "sessions"))
	return l.Items, err
}

func (s *Session) call(method string, more ...string) *call {
	return newCall(method, append([]string{"sandboxes", s.Sandbox, "sessions", s.ID}, more...)...)
}

// Exec runs a command in the session and waits until it ends. Background processes of the command
// live on with the session. The result's Session field says whether the session is still open: a
// command may end it, and so may a timeout.
//
// If the session is busy and x.WhenBusy does not allow waiting longer, the error is of class
// ResourceExhausted. If the session has ended, it is of class FailedPrecondition.
func (s *Session) Exec(ctx context.Context, x v1.ShellSessionExec, opts ...Option) (v1.ExecResult, error) {
	return callJSONWithBody[v1.ExecResult](ctx, s.client, s.call(http.MethodPost, "exec"), x, opts)
}

// Run runs a line of shell like Exec.
func (s *Session) Run(ctx context.Context, command string) (v1.ExecResult, error) {
	return s.Exec(ctx, v1.ShellSessionExec{Exec: v1.Exec{Command: command}})
}

// ExecStream is like Exec but copies input and output while the command runs, so the result's
// Stdout and Stderr are empty. If ctx ends or a writer fails, the command is interrupted.
func (s *Session) ExecStream(
	ctx context.Context,
	x v1.ShellSessionExec,
	st Streams,
	opts ...Option,
) (v1.ExecResult, error) {
	return s.client.stream(ctx, s.call(http.MethodPost, "exec").with(opts), x, st)
}

// End kills the session's processes and deletes the session. If it does not exist, the error is of
// class NotFound.
func (s *Session) End(ctx context.Context) (v1.ShellSession, error) {
	return callJSON[v1.ShellSession](ctx, s.client, s.call(http.MethodDelete))
}
