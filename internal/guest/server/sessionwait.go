package server

import (
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// acquireTurn waits for the command's turn, and restarts the session first if it has ended and the
// request allows it.
func (se *session) acquireTurn(c *wire.Conn, x *wire.SessionExec) (_ *session, renewed bool, err error) {
	for range maxRenewals {
		if err = se.awaitTurn(c, x.Wait); err == nil || !x.Renew || !se.ended() {
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

// awaitTurn waits for the session's turn while the host is connected.
func (se *session) awaitTurn(c *wire.Conn, wait time.Duration) error {
	se.mu.Lock()
	refused := se.busy && wait == 0 || se.waiting >= wire.MaxSessionQueue
	if !refused {
		se.waiting++
	}
	if !se.busy {
		wait = max(wait, turnTimeout)
	}
	se.mu.Unlock()
	busy := wire.Failf(wire.ResourceExhausted, "session", "session %q is busy with another command", se.spec.ID)
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
	look := time.NewTicker(peerCheckInterval)
	defer look.Stop()
	for {
		select {
		case <-se.done:
			return se.endedError()
		case se.turn <- struct{}{}:
			if se.ended() {
				<-se.turn
				return se.endedError()
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

// endedError is the error for a session that has ended.
func (se *session) endedError() error {
	return wire.Failf(wire.FailedPrecondition, "session", "session %q has ended (%s): start another one, or have it renewed", se.spec.ID, describeEnding(&se.result))
}
