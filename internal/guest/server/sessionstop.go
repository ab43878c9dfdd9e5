package server

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
)

// interrupt kills the command's processes and interrupts the shell, repeatedly, until the shell
// reports back. A shell that does not is killed. It returns the exit code, or the reason why the
// session has ended.
func (t *sessionCommand) interrupt(events <-chan string) (int, string) {
	se := t.se
	ctx, cancel := context.WithTimeoutCause(context.Background(), wire.SessionTime,
		errors.New("the session's shell does not respond"))
	defer cancel()
	for ctx.Err() == nil {
		_ = se.run.spare.process.Signal(syscall.SIGCONT) // the shell may have ended
		se.group.interruptCommand()
		event := t.nextEvent(events)
		if event == "" && se.group.killCommand(ctx) != nil {
			break
		}
		// Twice: a shell that handles the interrupt late drops the input it has read until then.
		for range 2 {
			if event == "" && !se.ended() {
				_ = se.writeLine(statusLine(t.pipes.dir)) // on failure, no event follows
				event = t.nextEvent(events)
			}
		}
		switch {
		case se.ended():
			return 0, "the session's shell ended when it was interrupted"
		case event == "":
		case exitCode(event) < 0:
			return t.killSession("what its shell said of the command's end was not understood, and the session was killed")
		case se.group.killCommand(ctx) != nil && !se.ended():
			return t.killSession("not everything that the command started could be killed, and the session was killed")
		case !t.synchronize(ctx, events):
			return t.killSession("the session's shell did not go on after it was interrupted, and the session was killed")
		default:
			return exitCode(event), ""
		}
	}
	return t.killSession("the session's shell did not come back when it was interrupted, and the session was killed")
}

// nextEvent waits up to interruptInterval for an event and returns "" if none comes.
func (t *sessionCommand) nextEvent(events <-chan string) string {
	round := time.NewTimer(interruptInterval)
	defer round.Stop()
	select {
	case event := <-events:
		return event
	case <-t.se.done:
	case <-round.C:
	}
	return ""
}

// synchronize waits until the shell has read all its input. It repeats the line for a shell that
// drops it.
func (t *sessionCommand) synchronize(ctx context.Context, events <-chan string) bool {
	for n := 0; ctx.Err() == nil && !t.se.ended(); n++ {
		line, want := syncLine(t.pipes.dir, n)
		if t.se.writeLine(line) != nil {
			return false
		}
		for event := t.nextEvent(events); event != ""; event = t.nextEvent(events) {
			if event == want {
				return true
			}
		}
	}
	return false
}

func (t *sessionCommand) killSession(detail string) (int, string) {
	t.se.s.Log.Warn("killed a session", "session", t.se.spec.ID, "why", detail)
	t.se.end()
	return 0, detail
}

// repairBash restores the parser of a bash that a syntax error has left in a wrong state. An
// interrupt resets it.
func (t *sessionCommand) repairBash(events <-chan string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), wire.SessionTime)
	defer cancel()
	if t.se.writeLine(parserProbe(t.pipes.dir)) != nil {
		return t.se.ended()
	}
	sane := false
	for ctx.Err() == nil && !t.se.ended() {
		switch t.nextEvent(events) {
		case "s0":
			sane = true
		case "s1": // the FIFO must exist until the shell has opened it
			if sane {
				return true
			}
			_ = t.se.run.spare.process.Signal(syscall.SIGINT) // the shell may have ended
			return t.synchronize(ctx, events) || t.se.ended()
		}
	}
	return t.se.ended()
}
