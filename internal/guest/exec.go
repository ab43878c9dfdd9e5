package guest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/runtime"
)

// IO is what a command is connected to. All of it may be nil.
type IO struct {
	// Stdin is read in a goroutine of its own from when the command runs, and
	// not at all if it never does, until it ends or the command does. Close it
	// if it can block: a Read under way is not interrupted.
	Stdin io.Reader
	// Stdout and Stderr get the output in the order it arrives, one Write at a
	// time over both. A slow one slows the command down; Exec returns no
	// earlier than a Write does.
	Stdout, Stderr io.Writer
	// Signals are sent to the running command. One that the guest refuses,
	// because the command has just ended, is dropped.
	Signals <-chan wire.Signal
	// Started is called once the command runs, before any output.
	Started func(wire.Started)
}

// Details of results that the host gives a reason to.
const (
	detailOutput = "what read its output went away"
	detailInput  = "what gave its input broke off"
	detailCaller = "its caller gave it up"
	detailTime   = "the time that its caller had for it was over"
	detailSignal = "a signal ended it"
	detailGuest  = "the guest lost the stream to the host, or was ending, and killed it"
)

var (
	errOutput = errors.New("write output")
	errInput  = errors.New("read input")
)

// Exec runs a command and returns once nothing of it lives.
//
// When ctx ends, or a Reader or Writer of rw fails, the guest is told to kill
// the command and has CancelTime to say how it ended: with Cancelled, unless
// it had ended before. Its Detail is then the words of ctx's cause, which are
// for whoever gets the result. If no ending came, the error wraps ErrLost and, if
// ctx ended, its cause. A command that was killed without any of this ends with
// SandboxLost. An error of class other than Unavailable says that the command
// never ran.
func (c *Client) Exec(ctx context.Context, cmd wire.Command, rw IO) (runtime.Result, error) {
	cmd.Stdin = rw.Stdin != nil
	e := &execution{rw: rw, timeout: cmd.Timeout}
	return e.carryOut(ctx, c, wire.OpExec, cmd, c.times.short)
}

// carryOut asks for a command and sees it to its end. It has to begin within a
// time.
func (e *execution) carryOut(ctx context.Context, c *Client, op wire.Op, body any, within time.Duration) (runtime.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.begin(ctx, op, body)
	if err != nil {
		return runtime.Result{}, err
	}
	defer s.close()
	s.within(within)
	e.stream = s
	rw := e.rw
	var signals sync.WaitGroup
	defer signals.Wait()
	defer cancel(nil)
	begun := func(id string) {
		if rw.Stdin != nil {
			// Not waited for: see IO.Stdin. Closing the stream ends the rest.
			go s.pump(rw.Stdin, s.eof, func(err error) { cancel(fmt.Errorf("%w: %w", errInput, err)) })
		}
		if rw.Signals != nil {
			signals.Go(func() { c.forward(ctx, id, rw.Signals) })
		}
	}
	for {
		result, done, err := e.step(ctx, begun)
		if errors.Is(err, errOutput) {
			cancel(err)
		}
		switch {
		case done:
			return e.unasked(result), err
		case err != nil && ctx.Err() != nil:
			return e.giveUp(context.Cause(ctx))
		case err != nil:
			return result, err
		}
	}
}

// forward sends signals on streams of their own: they do not queue behind
// input that the command does not read.
func (c *Client) forward(ctx context.Context, id string, signals <-chan wire.Signal) {
	for {
		select {
		case sig, ok := <-signals:
			if !ok {
				return
			}
			sig.ID = id
			_ = c.Signal(ctx, sig)
		case <-ctx.Done():
			return
		}
	}
}

// execution is the state of one Exec.
type execution struct {
	*stream
	rw      IO
	timeout time.Duration
	id      string
	started bool
	// session is what a result says of one.
	session wire.SessionResult
}

// step takes one frame.
func (e *execution) step(ctx context.Context, begun func(id string)) (runtime.Result, bool, error) {
	var none runtime.Result
	kind, payload, err := e.next(ctx)
	if err != nil {
		return none, false, err
	}
	switch {
	case kind == wire.KindFailure:
		return none, true, e.failure(payload)
	case kind == wire.KindStarted && !e.started:
		return none, false, e.start(payload, begun)
	case kind == wire.KindStdout && e.started:
		return none, false, write(e.rw.Stdout, payload)
	case kind == wire.KindStderr && e.started:
		return none, false, write(e.rw.Stderr, payload)
	case kind == wire.KindReply && e.started:
		r, err := e.result(payload)
		return r, true, err
	}
	return none, false, e.unexpected(kind)
}

func (e *execution) start(payload []byte, begun func(id string)) error {
	started, err := decode[wire.Started](e.stream, payload)
	if err != nil {
		return err
	}
	if err := checkID(started.ID); err != nil || started.Pid < 0 {
		return e.broke("it started pid %d: %v", started.Pid, err)
	}
	e.id, e.started = started.ID, true
	// The guest ends the command in time; that it does not is a lost guest.
	e.within(0)
	if e.timeout > 0 {
		e.within(e.timeout + e.client.times.short)
	}
	if e.rw.Started != nil {
		e.rw.Started(started)
	}
	begun(started.ID)
	return nil
}

func write(w io.Writer, b []byte) error {
	if w == nil || len(b) == 0 {
		return nil
	}
	n, err := w.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errOutput, err)
	}
	return nil
}

func (e *execution) result(payload []byte) (runtime.Result, error) {
	r, err := decode[wire.SessionResult](e.stream, payload)
	if err == nil {
		err = checkResult(&r.Result)
		if err != nil {
			err = e.broke("%v", err)
		}
	}
	if err != nil {
		return runtime.Result{}, err
	}
	e.session = r
	return r.Result, nil
}

// giveUp makes the guest kill the command and waits for how it ended.
func (e *execution) giveUp(cause error) (runtime.Result, error) {
	e.unwatch()
	end := time.Now().Add(e.client.times.cancel)
	// Half a stream is the sign where there are halves. Elsewhere the command
	// is killed over another stream: input may stand in the way on this one.
	told := e.hangUp() || e.kill(end)
	if told {
		_ = e.nc.SetReadDeadline(end) // if it cannot, the guest has hung up
		for time.Now().Before(end) {
			kind, payload, err := e.c.ReadFrame()
			if err != nil || kind == wire.KindFailure {
				break
			}
			if kind == wire.KindReply {
				r, err := e.result(payload)
				if err != nil {
					return r, err
				}
				return gaveUp(r, cause), nil
			}
		}
	}
	err := &lostError{op: e.op, cause: fmt.Errorf("it did not say how the command ended after it was given up: %w", cause)}
	return runtime.Result{}, errors.Join(err, fmt.Errorf("%s: %w", e.op, cause))
}

// kill kills the command, if it is known to have started.
func (e *execution) kill(end time.Time) bool {
	if !e.started {
		return false
	}
	ctx, cancel := context.WithDeadline(context.Background(), end)
	defer cancel()
	err := e.client.Signal(ctx, wire.Signal{ID: e.id, Number: int(syscall.SIGKILL), All: true})
	_, refused := errors.AsType[*Error](err) // it has just ended
	return err == nil || refused
}

// gaveUp names an ending that the host brought about: all that the guest saw of
// that is a stream that ended, or a signal. Output or input that broke off is one
// also where the command ended by itself at that moment: what the caller has of
// it is not all.
func gaveUp(r runtime.Result, cause error) runtime.Result {
	switch {
	case errors.Is(cause, errOutput):
		r.Ending, r.Detail = runtime.Cancelled, detailOutput
	case errors.Is(cause, errInput):
		r.Ending, r.Detail = runtime.Cancelled, detailInput
	case r.Ending == runtime.Signalled && r.Signal == int(syscall.SIGKILL), r.Ending == runtime.SandboxLost, r.Ending == runtime.Cancelled:
		r.Ending, r.Detail = runtime.Cancelled, cmp.Or(r.Detail, whyGivenUp(cause))
	}
	return r
}

func whyGivenUp(cause error) string {
	switch {
	case errors.Is(cause, context.Canceled):
		return detailCaller
	case errors.Is(cause, context.DeadlineExceeded):
		return detailTime
	}
	return text(cause.Error(), maxDetail)
}

// unasked names the ending of a command that the host did not give up: what a
// guest takes for that is a way between the two that broke. Only in a session a
// signal cancels, which came on another stream.
func (e *execution) unasked(r runtime.Result) runtime.Result {
	switch {
	case r.Ending == runtime.Cancelled && e.op == wire.OpSessionExec:
		r.Detail = cmp.Or(r.Detail, detailSignal)
	case r.Ending == runtime.Cancelled, r.Ending == runtime.SandboxLost:
		r.Ending, r.Detail = runtime.SandboxLost, cmp.Or(r.Detail, detailGuest)
	}
	return r
}
