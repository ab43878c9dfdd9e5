package server

import (
	"bufio"
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
	// roundTime is how long a shell has to come back from one interrupt before
	// what its command started is killed, and it is interrupted again.
	roundTime = 20 * time.Millisecond
	// readyTime is how long a session may take to be made ready for the next
	// command after it has answered one.
	readyTime = 5 * time.Second
	// renewals bounds how often a command tries a session that others end.
	renewals = 3
	// syntaxError is what shells exit with at one, and other programs too.
	syntaxError = 2
	// maxStatus bounds a line of a shell's status.
	maxStatus = 16
	// lastWords is how long what a shell wrote before it ended is waited for.
	lastWords = 100 * time.Millisecond
)

// turn is one command in a session, from when it is its turn.
type turn struct {
	se *session
	x  wire.SessionExec
	p  *pipes
	// outputs may be looked at when the command has hung up.
	outputs []*pump

	mu      sync.Mutex
	cause   runtime.Ending
	stopped chan struct{} // closed by the first stop
}

// execSession runs a command in a session for as long as its stream lives.
func (s *Server) execSession(c *wire.Conn, body json.RawMessage) error {
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
	se, renewed, err := se.enter(c, &x)
	if err != nil {
		return err
	}
	var input sync.WaitGroup
	defer input.Wait()
	defer c.Close() // ends feed
	defer se.release()
	t := newTurn(se, x)
	res, err := func() (wire.SessionResult, error) {
		if f := se.room(); f != nil {
			return wire.SessionResult{}, f
		}
		if err := s.enlist(t); err != nil {
			return wire.SessionResult{}, err
		}
		defer s.delist(t)
		return t.carryOut(c, &input)
	}()
	res.Renewed = renewed
	se.setBusy(false)
	if err != nil {
		s.answer(c, err)
		return nil
	}
	return c.Reply(res)
}

func newTurn(se *session, x wire.SessionExec) *turn {
	return &turn{se: se, x: x, stopped: make(chan struct{})}
}

// room refuses a command where too many before it are still read from.
func (se *session) room() *wire.Failure {
	se.mu.Lock()
	defer se.mu.Unlock()
	if se.left >= wire.MaxSessionLeft {
		return wire.Failf(wire.ResourceExhausted, "session", "%d commands of the session have left something in the background that holds their output open; end some, or send their output to files", wire.MaxSessionLeft)
	}
	return nil
}

// enlist lets signals find the command by its id.
func (s *Server) enlist(t *turn) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns[t.x.ID] != nil || s.running[t.x.ID] != nil {
		return wire.Failf(wire.AlreadyExists, "id", "a command %q is running", t.x.ID)
	}
	s.turns[t.x.ID] = t
	return nil
}

func (s *Server) delist(t *turn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.turns, t.x.ID)
}

// stop ends the command for a reason of ours; the first one counts.
func (t *turn) stop(cause runtime.Ending) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == "" {
		t.cause = cause
		close(t.stopped)
	}
}

// signal ends the command by any signal that ends commands: to the shell, and
// to what it started, it is an interrupt. Others are refused.
func (t *turn) signal(n int) error {
	switch syscall.Signal(n) {
	case syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGHUP, syscall.SIGQUIT:
		t.stop(runtime.Cancelled)
		return nil
	}
	return wire.Failf(wire.FailedPrecondition, "number", "a command in a session takes signals that end it only: 1, 2, 3, 9 and 15")
}

func (t *turn) why() runtime.Ending {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cause
}

// carryOut runs the command and returns when it has ended. Without a stream its
// output is dropped. What feeds it from the stream ends with the stream.
func (t *turn) carryOut(c *wire.Conn, input *sync.WaitGroup) (wire.SessionResult, error) {
	se := t.se
	var err error
	if t.p, err = newPipes(se.folder, t.x.Text, t.x.Stdin); err != nil {
		return wire.SessionResult{}, err
	}
	defer t.p.folder.remove() //nolint:errcheck // it goes with the session's
	se.mu.Lock()
	se.commands++
	se.mu.Unlock()
	f := facts{before: se.s.yard.maker.counters(), full: se.s.diskFull, wasFull: se.s.diskFull()}
	alone := se.s.alone()
	began := time.Now()
	events, quiet := make(chan string), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() { readStatus(t.p.status, events, quiet) })
	defer reader.Wait()
	defer t.p.status.Close()
	defer close(quiet)
	if err := t.open(events); err != nil {
		t.p.close()
		return wire.SessionResult{}, err
	}
	if t.x.Timeout > 0 {
		timer := time.AfterFunc(t.x.Timeout, func() { t.stop(runtime.Timeout) })
		defer timer.Stop()
	}
	hangUp := t.connect(c, input)
	code, gone := t.follow(events)
	f.cause = t.why()
	took := time.Since(began)
	if c != nil {
		c.SetWriteDeadline(time.Now().Add(stallTime)) //nolint:errcheck // a closed stream takes no time
	}
	hangUp()
	if f.cause == "" && t.why() == runtime.OutputLimit { // it was more than allowed all the same
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
		f.told = slices.ContainsFunc(t.outputs, func(p *pump) bool { return told(p.last) })
		f.used, f.after, f.alone = se.fold.spent(), se.s.yard.maker.counters(), alone()
		res.Result = judge(f)
	}
	res.Duration = took
	return res, nil
}

// say writes a line to the shell.
func (se *session) say(line string) error {
	if err := se.control.SetWriteDeadline(time.Now().Add(beginTime)); err != nil {
		return err
	}
	_, err := se.control.WriteString(line)
	return err
}

// broken ends a session whose shell does not keep to what was agreed on.
func (se *session) broken(err error) error {
	if se.ended() {
		return se.over()
	}
	se.end()
	return wire.Failf(wire.FailedPrecondition, "session", "session %q was ended, the command did not run: %v", se.start.ID, err)
}

// open hands the command to the shell and waits until that has its ends of the
// pipes.
func (t *turn) open(events <-chan string) error {
	se := t.se
	if err := se.say(lines(se.folder.path(nameControl), t.p.folder, t.x.Stdin)); err != nil {
		return se.broken(err)
	}
	late := time.NewTimer(beginTime)
	defer late.Stop()
	event := ""
	select {
	case event = <-events:
	case <-se.done:
		select {
		case event = <-events: // it may have ended right after
		case <-time.After(lastWords):
			return se.over()
		}
	case <-late.C:
		return se.broken(fmt.Errorf("its shell did not begin with it within %s", beginTime))
	}
	if event != "b" {
		return se.broken(errors.New("its shell could not open the command's streams"))
	}
	if err := t.p.opened(); err != nil {
		return se.broken(err)
	}
	return nil
}

// readStatus hands on the lines of a shell's status until the file is closed or
// nobody listens. What is no such line is handed on as "?".
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

// exitCode reads "e" and a number; -1 if it is something else.
func exitCode(event string) int {
	text, ok := strings.CutPrefix(event, "e")
	n, err := strconv.Atoi(text)
	if !ok || err != nil || n < 0 || n > 255 || strconv.Itoa(n) != text {
		return -1
	}
	return n
}

// follow waits for the end of the command, and brings it about when it is to
// be stopped. It returns the command's exit code, or why the session is gone.
func (t *turn) follow(events <-chan string) (code int, gone string) {
	se := t.se
	select {
	case e := <-events:
		switch code := exitCode(e); {
		case code == syntaxError && se.start.Shell == "bash" && !t.mend(events):
			return t.giveUp("the session's shell did not go on after an error, and the session was killed")
		case code >= 0:
			return code, ""
		}
		return t.giveUp("what its shell said of the command's end was not understood, and the session was killed")
	case <-t.stopped:
		return t.interrupt(events)
	case <-se.done:
		return 0, "the session's shell ended with the command"
	}
}

// alone tells later whether nothing else ran since.
func (s *Server) alone() func() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, only := s.starts, len(s.running) == 1
	return func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return only && s.starts == before
	}
}
