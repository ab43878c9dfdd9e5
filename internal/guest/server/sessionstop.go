package server

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// interrupt kills what the command started and interrupts the shell, again and
// again, until it comes back; it is killed if it does not.
func (t *turn) interrupt(events <-chan string) (int, string) {
	se := t.se
	ctx, cancel := context.WithTimeoutCause(context.Background(), wire.SessionTime, errors.New("the session's shell does not come back"))
	defer cancel()
	for ctx.Err() == nil {
		_ = se.run.sp.leader.Signal(syscall.SIGCONT) // it may have ended
		se.fold.interrupt()
		event := t.listen(events)
		if event == "" && se.fold.strike(ctx) != nil {
			break
		}
		// Twice: a shell that takes the interrupt late drops what it has read by then.
		for range 2 {
			if event == "" && !se.ended() {
				_ = se.say(report(t.p.folder)) // if it cannot be said, it is not heard either
				event = t.listen(events)
			}
		}
		switch {
		case se.ended():
			return 0, "the session's shell ended when it was interrupted"
		case event == "":
		case exitCode(event) < 0:
			return t.giveUp("what its shell said of the command's end was not understood, and the session was killed")
		case se.fold.strike(ctx) != nil && !se.ended():
			return t.giveUp("not everything that the command started could be killed, and the session was killed")
		case !t.settle(ctx, events):
			return t.giveUp("the session's shell did not go on after it was interrupted, and the session was killed")
		default:
			return exitCode(event), ""
		}
	}
	return t.giveUp("the session's shell did not come back when it was interrupted, and the session was killed")
}

// listen waits for an event for a short time; "" is none.
func (t *turn) listen(events <-chan string) string {
	round := time.NewTimer(roundTime)
	defer round.Stop()
	select {
	case event := <-events:
		return event
	case <-t.se.done:
	case <-round.C:
	}
	return ""
}

// settle waits until the shell has read all that it was told, which it is told
// again as above.
func (t *turn) settle(ctx context.Context, events <-chan string) bool {
	for n := 0; ctx.Err() == nil && !t.se.ended(); n++ {
		line, want := sign(t.p.folder, n)
		if t.se.say(line) != nil {
			return false
		}
		for event := t.listen(events); event != ""; event = t.listen(events) {
			if event == want {
				return true
			}
		}
	}
	return false
}

func (t *turn) giveUp(detail string) (int, string) {
	t.se.s.Log.Warn("a session was killed", "session", t.se.start.ID, "why", detail)
	t.se.end()
	return 0, detail
}

// mend makes a bash that an error of syntax has left confused its old self. An
// interrupt does that.
func (t *turn) mend(events <-chan string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), wire.SessionTime)
	defer cancel()
	if t.se.say(parserLine(t.p.folder)) != nil {
		return t.se.ended()
	}
	sane := false
	for ctx.Err() == nil && !t.se.ended() {
		switch t.listen(events) {
		case "s0":
			sane = true
		case "s1": // what it opens has to be there until it has
			if sane {
				return true
			}
			_ = t.se.run.sp.leader.Signal(syscall.SIGINT) // it may have ended
			return t.settle(ctx, events) || t.se.ended()
		}
	}
	return t.se.ended()
}
