package server

import (
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// enter waits for the turn of a command, if need be in a new session.
func (se *session) enter(c *wire.Conn, x *wire.SessionExec) (_ *session, renewed bool, err error) {
	for range renewals {
		if err = se.await(c, x.Wait); err == nil || !x.Renew || !se.ended() {
			break
		}
		var rErr error
		if se, rErr = se.s.renew(se); rErr != nil {
			return nil, false, rErr
		}
		renewed = true
	}
	return se, renewed, err
}

// await waits for the session's turn while the host is there.
func (se *session) await(c *wire.Conn, wait time.Duration) error {
	se.mu.Lock()
	refused := se.busy && wait == 0 || se.waiting >= wire.MaxSessionQueue
	if !refused {
		se.waiting++
	}
	if !se.busy {
		wait = max(wait, readyTime)
	}
	se.mu.Unlock()
	busy := wire.Failf(wire.ResourceExhausted, "session", "session %q is busy with another command", se.start.ID)
	if refused && !se.ended() {
		return busy
	}
	if !refused {
		defer func() {
			se.mu.Lock()
			se.waiting--
			se.mu.Unlock()
		}()
	}
	over := time.NewTimer(wait)
	defer over.Stop()
	look := time.NewTicker(goneCheck)
	defer look.Stop()
	for {
		select {
		case <-se.done:
			return se.over()
		case se.slot <- struct{}{}:
			if se.ended() {
				<-se.slot
				return se.over()
			}
			se.setBusy(true)
			return nil
		case <-over.C:
			return busy
		case <-look.C:
			if c.PeerGone() {
				return errHostGone
			}
		case <-se.s.ctx.Done():
			return wire.Failf(wire.Unavailable, "", "the sandbox is ending")
		}
	}
}

func (se *session) setBusy(busy bool) {
	se.mu.Lock()
	defer se.mu.Unlock()
	se.busy = busy
}

// over is the answer of a session that has ended.
func (se *session) over() error {
	return wire.Failf(wire.FailedPrecondition, "session", "session %q has ended (%s): start another one, or have it renewed", se.start.ID, ending(&se.result))
}
