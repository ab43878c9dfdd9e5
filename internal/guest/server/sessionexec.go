package server

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/prefork"
	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

const (
	// interruptInterval is how long a shell may take to react to an interrupt. After it, the
	// command's processes are killed and the shell is interrupted again.
	interruptInterval = 20 * time.Millisecond
	// turnTimeout is the minimum wait for a session that has answered its last command and is being
	// prepared for the next one.
	turnTimeout = 5 * time.Second
	// maxRenewals is how often a command retries a session that ends while it waits.
	maxRenewals = 3
	// exitSyntaxError is the exit code of shells after a syntax error; other programs use it too.
	exitSyntaxError = 2
	// maxStatus is the maximum length of a line from a shell.
	maxStatus = 16
	// finalStatusWait is how long to wait for a status that a shell wrote before it ended.
	finalStatusWait = 100 * time.Millisecond
)

// sessionCommand is one command in a session, from the start of its turn.
type sessionCommand struct {
	se    *session
	req   wire.SessionExec
	pipes *pipes
	// outputs may be read once the command has hung up.
	outputs []*pump

	mu      sync.Mutex
	cause   runtime.Ending
	stopped chan struct{} // closed by the first call of stop
}

// execSession runs a command in a session for as long as its stream lives.
func (s *Server) execSession(ctx context.Context, c *wire.Conn, body json.RawMessage) error {
	var x wire.SessionExec
	if err := wire.Decode(body, &x); err != nil {
		return err
	}
	if f := checkSessionExec(&x); f != nil {
		return f
	}
	se, err := s.findSession(x.Session)
	if err != nil {
		return err
	}
	se, renewed, err := se.acquireTurn(ctx, c, &x)
	if err != nil {
		return err
	}
	var input sync.WaitGroup
	defer input.Wait()
	defer c.Close() // ends feed
	defer se.releaseTurn()
	defer se.killLate(ctx)()
	t := newSessionCommand(se, x)
	res, err := func() (wire.SessionResult, error) {
		if f := se.checkBackground(); f != nil {
			return wire.SessionResult{}, f
		}
		if err := s.registerSessionCommand(t); err != nil {
			return wire.SessionResult{}, err
		}
		defer s.unregisterSessionCommand(t)
		return t.run(c, &input)
	}()
	res.Renewed = renewed
	se.setBusy(false)
	if err != nil {
		s.answer(c, err)
		return nil
	}
	return c.Reply(res)
}

// killLate kills the session if its command has not ended cutTime after the end of ctx. The command
// has ended when the returned function is called.
func (se *session) killLate(ctx context.Context) (ended func()) {
	over := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-over:
		case <-time.After(cutTime):
			se.run.stop(runtime.SandboxLost)
		}
	})
	return func() { stop(); close(over) }
}

func newSessionCommand(se *session, x wire.SessionExec) *sessionCommand {
	return &sessionCommand{se: se, req: x, stopped: make(chan struct{})}
}

// checkBackground rejects a command if too many earlier ones still have their output held open.
func (se *session) checkBackground() *wire.Failure {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.background >= wire.MaxSessionLeft {
		return wire.Failf(wire.ResourceExhausted, "session",
			"%d ended commands of the session have background processes that hold their output open: end some, or redirect "+
				"their output to files", wire.MaxSessionLeft)
	}
	return nil
}

// registerSessionCommand makes the command reachable for signals by its id.
func (s *Server) registerSessionCommand(t *sessionCommand) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessionCommands[t.req.ID] != nil || s.running[t.req.ID] != nil {
		return wire.Failf(wire.AlreadyExists, "id", "command %q is already running", t.req.ID)
	}
	s.sessionCommands[t.req.ID] = t
	return nil
}

func (s *Server) unregisterSessionCommand(t *sessionCommand) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.sessionCommands, t.req.ID)
}

// stop ends the command and records the cause; the first cause wins.
func (t *sessionCommand) stop(cause runtime.Ending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == "" {
		t.cause = cause
		close(t.stopped)
	}
}

// signal ends the command. The shell and the command's processes are interrupted for every signal
// that normally ends a command. Other signals are rejected.
func (t *sessionCommand) signal(n int) error {
	switch syscall.Signal(n) {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGHUP, syscall.SIGQUIT:
		t.stop(runtime.Cancelled)
		return nil
	default:
	}
	return wire.Failf(wire.FailedPrecondition, "number",
		"a command in a session accepts only signals that end it: 1, 2, 3, 9 and 15")
}

func (t *sessionCommand) stopCause() runtime.Ending {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause
}

// run runs the command and returns when it has ended. Without a stream its output is dropped. The
// goroutine that feeds input ends with the stream.
func (t *sessionCommand) run(c *wire.Conn, input *sync.WaitGroup) (wire.SessionResult, error) {
	se := t.se
	var err error
	if t.pipes, err = newPipes(se.dir, t.req.Text, t.req.Stdin); err != nil {
		return wire.SessionResult{}, err
	}
	defer t.pipes.dir.remove() //nolint:errcheck // it goes with the session's
	se.mu.Lock()
	se.commands++
	se.mu.Unlock()
	f := endingFacts{before: se.s.spares.maker.counters(), findFull: se.s.fullPlaces, fullBefore: se.s.fullPlaces()}
	alone := se.s.watchAlone()
	began := time.Now()
	events, quiet := make(chan string), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { readStatus(t.pipes.status, events, quiet) })
	defer reader.Wait()
	defer t.pipes.status.Close()
	defer close(quiet)
	if err := t.openStreams(events); err != nil {
		t.pipes.close()
		return wire.SessionResult{}, err
	}
	if t.req.Timeout > 0 {
		timer := time.AfterFunc(t.req.Timeout, func() { t.stop(runtime.Timeout) })
		defer timer.Stop()
	}
	hangUp := t.connectStreams(c, input)
	code, gone := t.awaitEnd(events)
	f.cause = t.stopCause()
	took := time.Since(began)
	if c != nil {
		c.SetWriteDeadline(time.Now().Add(stallTime)) //nolint:errcheck // a closed stream takes no time
	}
	hangUp()
	if f.cause == "" && t.stopCause() == runtime.OutputLimit { // the rest of the output can still exceed the limit
		f.cause = runtime.OutputLimit
	}

	var res wire.SessionResult
	if gone != "" {
		<-se.done
		res.Result, res.Ended = se.result, true
		if f.cause != "" {
			res.Ending, res.ExitCode, res.Signal = f.cause, -1, 0
		}
		res.Detail = gone
	} else {
		if f.cause == "" {
			f.exit = &prefork.Exit{Status: syscall.WaitStatus(code << 8)}
		}
		f.saidDiskFull = slices.ContainsFunc(t.outputs, func(p *pump) bool { return saysDiskFull(p.tail) })
		f.used, f.after, f.alone = se.group.commandUsage(), se.s.spares.maker.counters(), alone()
		res.Result = resolveResult(f)
	}
	res.Duration = took
	return res, nil
}

// writeLine writes a line to the shell.
func (se *session) writeLine(line string) error {
	if err := se.control.SetWriteDeadline(time.Now().Add(startTimeout)); err != nil {
		return err
	}
	_, err := se.control.WriteString(line)
	return err
}

// endBroken ends a session whose shell breaks the protocol.
func (se *session) endBroken(err error) error {
	if se.ended() {
		return se.endedError()
	}
	se.end()
	return wire.Failf(wire.FailedPrecondition, "session", "session %q was ended, the command did not run: %v", se.spec.ID,
		err)
}

// openStreams hands the command to the shell and waits until the shell has opened its ends of the
// pipes.
func (t *sessionCommand) openStreams(events <-chan string) error {
	se := t.se
	if err := se.writeLine(commandLines(se.dir.path(nameControl), t.pipes.dir, t.req.Stdin)); err != nil {
		return se.endBroken(err)
	}
	late := time.NewTimer(startTimeout)
	defer late.Stop()
	var event string
	select {
	case event = <-events:
	case <-se.done:
		select {
		case event = <-events: // the shell may have ended right after it
		case <-time.After(finalStatusWait):
			return se.endedError()
		}
	case <-late.C:
		return se.endBroken(fmt.Errorf("the shell did not start the command within %s", startTimeout))
	}
	if event != "b" {
		return se.endBroken(errors.New("the shell could not open the command's streams"))
	}
	if err := t.pipes.keepOwnEnds(); err != nil {
		return se.endBroken(err)
	}
	return nil
}

// readStatus sends the shell's status lines to events until the file or quiet is closed. A line
// that is too long is sent as "?".
func readStatus(file *os.File, events chan<- string, quiet <-chan struct{}) {
	in := bufio.NewReaderSize(file, maxStatus)
	for {
		line, err := in.ReadSlice('\n')
		event := strings.TrimSuffix(string(line), "\n")
		if errors.Is(err, bufio.ErrBufferFull) {
			event = "?"
		} else if err != nil {
			return
		}
		select {
		case events <- event:
		case <-quiet:
			return
		}
	}
}

// exitCode parses "e" and a number. It returns -1 for anything else.
func exitCode(event string) int {
	text, ok := strings.CutPrefix(event, "e")
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n < 0 || n > 255 || strconv.Itoa(n) != text {
		return -1
	}
	return n
}

// awaitEnd waits for the end of the command, or stops it on request. It returns the exit code, or
// the reason why the session has ended.
func (t *sessionCommand) awaitEnd(events <-chan string) (code int, gone string) {
	se := t.se
	select {
	case e := <-events:
		switch code := exitCode(e); {
		case code == exitSyntaxError && se.spec.Shell == "bash" && !t.repairBash(events):
			return t.killSession("the session's shell did not go on after an error, and the session was killed")
		case code >= 0:
			return code, ""
		}
		return t.killSession("what its shell said of the command's end was not understood, and the session was killed")
	case <-t.stopped:
		return t.interrupt(events)
	case <-se.done:
		return 0, "the session's shell ended with the command"
	}
}

// watchAlone returns a function that reports whether no other command has run since.
func (s *Server) watchAlone() func() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, only := s.startCount, len(s.running) == 1
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return only && s.startCount == before
	}
}

// acquireTurn waits for the command's turn, and restarts the session first if it has ended and the
// request allows it.
func (se *session) acquireTurn(ctx context.Context, c *wire.Conn, x *wire.SessionExec) (
	_ *session, renewed bool, err error) {
	for range maxRenewals {
		if err = se.awaitTurn(ctx, c, x.Wait); err == nil || !x.Renew || !se.ended() {
			break
		}
		var rErr error
		if se, rErr = se.s.renew(ctx, se); rErr != nil {
			return nil, false, rErr
		}
		renewed = true
	}
	return se, renewed, err
}

// awaitTurn waits for the session's turn while the host is connected.
func (se *session) awaitTurn(ctx context.Context, c *wire.Conn, wait time.Duration) error {
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
			if ctx.Err() != nil {
				<-se.turn
				return errShutDown()
			}
			se.setBusy(true)
			return nil
		case <-over.C:
			return busy
		case <-look.C:
			if c.PeerGone() {
				return errHostGone
			}
		case <-ctx.Done():
			return errShutDown()
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
	return wire.Failf(wire.FailedPrecondition, "session",
		"session %q has ended (%s): start another one, or allow its renewal", se.spec.ID, describeEnding(&se.result))
}
