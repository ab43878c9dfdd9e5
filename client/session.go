package client

import (
	"context"
	"net/http"

	v1 "github.com/sandbox-orchestrator/orchestrator/client/v1"
)

// Session is a shell in a sandbox that lives on between the commands that are
// run in it: working directory, variables, functions, aliases and options stay.
// Commands run one at a time. Its methods may be called concurrently.
type Session struct {
	// Sandbox and ID name it.
	Sandbox, ID string
	client      *Client
}

// StartSession starts a session.
func (c *Client) StartSession(ctx context.Context, sandbox string, r v1.ShellSessionRequest, opts ...Option) (*Session, v1.ShellSession, error) {
	got, err := post[v1.ShellSession](ctx, c, newCall(http.MethodPost, "sandboxes", sandbox, "sessions"), r, opts)
	if err != nil {
		return nil, got, err
	}
	return c.Session(sandbox, got.ID), got, nil
}

// Session is one that was started. Nothing is asked: a wrong id shows with the
// first command.
func (c *Client) Session(sandbox, id string) *Session {
	return &Session{Sandbox: sandbox, ID: id, client: c}
}

// Sessions lists a sandbox's sessions, the oldest first.
func (c *Client) Sessions(ctx context.Context, sandbox string) ([]v1.ShellSession, error) {
	l, err := ask[v1.List[v1.ShellSession]](ctx, c, newCall(http.MethodGet, "sandboxes", sandbox, "sessions"))
	return l.Items, err
}

func (s *Session) call(method string, more ...string) *call {
	return newCall(method, append([]string{"sandboxes", s.Sandbox, "sessions", s.ID}, more...)...)
}

// Exec runs a command in the session and waits for its end. What the command
// leaves in the background lives on with the session. The result says whether
// the session does: a command may end it, and one that is out of time may take
// it along. A session that is busy is of class ResourceExhausted, one that has
// ended of class FailedPrecondition.
func (s *Session) Exec(ctx context.Context, x v1.ShellSessionExec, opts ...Option) (v1.ExecResult, error) {
	return post[v1.ExecResult](ctx, s.client, s.call(http.MethodPost, "exec"), x, opts)
}

// Run is Exec of a line of shell.
func (s *Session) Run(ctx context.Context, command string) (v1.ExecResult, error) {
	return s.Exec(ctx, v1.ShellSessionExec{Exec: v1.Exec{Command: command}})
}

// ExecStream is Exec with live streams: the result holds no output of its own.
// If ctx ends, or a writer fails, the command is interrupted.
func (s *Session) ExecStream(ctx context.Context, x v1.ShellSessionExec, st Streams, opts ...Option) (v1.ExecResult, error) {
	return s.client.stream(ctx, s.call(http.MethodPost, "exec").with(opts), x, st)
}

// End kills what lives of the session and forgets it. One that is not there is
// of class NotFound.
func (s *Session) End(ctx context.Context) (v1.ShellSession, error) {
	return ask[v1.ShellSession](ctx, s.client, s.call(http.MethodDelete))
}
