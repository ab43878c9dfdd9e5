package guest

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// StartSession starts a session. If the id exists, it returns that session.
func (c *Client) StartSession(ctx context.Context, st wire.SessionStart) (wire.Session, error) {
	return c.askSession(ctx, wire.OpSessionStart, st, st.ID)
}

// EndSession kills all processes of a session and forgets it.
func (c *Client) EndSession(ctx context.Context, id string) (wire.Session, error) {
	return c.askSession(ctx, wire.OpSessionEnd, wire.ShellRef{ID: id}, id)
}

func (c *Client) askSession(ctx context.Context, op wire.Op, body any, id string) (wire.Session, error) {
	return askChecked(ctx, c, op, body, c.times.short, func(se *wire.Session) error {
		if se.ID != id {
			return fmt.Errorf("answer about session %.200q instead of %q", se.ID, id)
		}
		return checkSession(se)
	})
}

// Sessions describes all sessions, including ended ones that were not forgotten.
func (c *Client) Sessions(ctx context.Context) ([]wire.Session, error) {
	return askList(ctx, c, wire.OpSessions, wire.MaxSessions, checkSession)
}

// ExecSession runs a command in a session, like Exec. If ctx ends, or a Reader or Writer fails, the
// command is interrupted, and the session continues if possible. An error of a class other than
// Unavailable means that the command never ran: ResourceExhausted if the session is busy,
// FailedPrecondition if it has ended.
func (c *Client) ExecSession(ctx context.Context, x wire.SessionExec, rw IO) (wire.SessionResult, error) {
	x.Stdin = rw.Stdin != nil
	e := &execution{rw: rw, timeout: x.Timeout}
	r, err := e.runToEnd(ctx, c, wire.OpSessionExec, x, max(x.Wait, 0)+c.times.short)
	return wire.SessionResult{Result: r, Ended: e.session.Ended, Renewed: e.session.Renewed}, err
}

func checkSession(se *wire.Session) error {
	if err := checkID(se.ID); err != nil {
		return err
	}
	switch {
	case se.Shell != "bash" && se.Shell != "sh":
		return fmt.Errorf("invalid shell %.64q of a session", se.Shell)
	case se.Pid < 0 || se.Commands < 0 || se.Waiting < 0 || se.Left < 0:
		return errors.New("negative number in a session")
	}
	if se.Result != nil {
		return checkResult(se.Result)
	}
	return nil
}
