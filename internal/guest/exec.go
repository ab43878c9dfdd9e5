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

// IO connects a command's streams. All fields may be nil.
type IO struct {
	// Stdin is read in a separate goroutine from the start of the command until Stdin or the
	// command ends. It is not read if the command never starts. A Read in progress is not
	// interrupted, so close Stdin if it can block.
	Stdin io.Reader
	// Stdout and Stderr receive the output in order of arrival, with one Write at a time for both.
	// A slow Write slows the command down, and Exec waits for it.
	Stdout, Stderr io.Writer
	// Signals are sent to the running command. A signal that arrives just after its end is dropped.
	Signals <-chan wire.Signal
	// Started is called once, when the command runs and before any output.
	Started func(wire.Started)
}

// Details of results whose reason the host knows.
const (
	detailOutput = "the reader of its output failed or disconnected"
	detailInput  = "the source of its input failed"
	detailCaller = "its caller cancelled it"
	detailTime   = "the caller's deadline expired"
	detailSignal = "it was cancelled by a signal"
	detailGuest  = "the guest killed it because it lost the stream to the host or was shutting down"
)

var (
	errOutput = errors.New("write output")
	errInput  = errors.New("read input")
)

// Exec runs a command and returns when all its processes have ended.
//
// If ctx ends, or a Reader or Writer of rw fails, the guest must kill the command and report its
// ending within CancelTime. The result is Cancelled, unless the command had already ended, and its
// Detail is the text of ctx's cause, which must therefore be safe to show to the caller. Without an
// ending in time, the error wraps ErrLost and, if ctx ended, its cause. A command that was killed
// for another reason ends with SandboxLost. An error of a class other than Unavailable means that
// the command never ran.
func (c *Client) Exec(ctx context.Context, cmd wire.Command, rw IO) (runtime.Result, error) {
	cmd.Stdin = rw.Stdin != nil
	e := &execution{rw: rw, timeout: cmd.Timeout}
	return e.runToEnd(ctx, c, wire.OpExec, cmd, c.times.short)
}

// runToEnd requests a command and waits for its result. startTime limits the wait for its start.
func (e *execution) runToEnd(ctx context.Context, c *Client, op wire.Op, body any,
	startTime time.Duration) (runtime.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.begin(ctx, op, body)
	if err != nil {
		return runtime.Result{}, err
	}
	defer s.close()
	s.within(startTime)
	e.stream = s
	rw := e.rw
	var signals sync.WaitGroup
	defer signals.Wait()
	defer cancel(nil)
	begun := func(id string) {
		if rw.Stdin != nil {
			// Do not wait for it, see IO.Stdin. Closing the stream ends the rest.
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
			return e.lostResult(result), err
		case err != nil && ctx.Err() != nil:
			return e.cancel(ctx)
		case err != nil:
			return result, err
		}
	}
}

// forward sends signals on separate streams, so that they do not wait behind input that the command
// does not read.
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
	// session is the session part of the result.
	session wire.SessionResult
}

// step processes one frame.
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
		return e.protocolError("invalid start message with pid %d: %v", started.Pid, err)
	}
	e.id, e.started = started.ID, true
	// The guest enforces the timeout. A guest that does not is lost.
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
			err = e.protocolError("%v", err)
		}
	}
	if err != nil {
		return runtime.Result{}, err
	}
	e.session = r
	return r.Result, nil
}

// cancel makes the guest kill the command and waits for its ending.
func (e *execution) cancel(ctx context.Context) (runtime.Result, error) {
	cause := context.Cause(ctx)
	e.unwatch()
	end := time.Now().Add(e.client.times.cancel)
	// A half-closed stream tells the guest to kill the command. On a mux, the end waits behind input
	// that the command may never read: use another stream.
	told := !e.muxed() && e.hangUp() || e.kill(context.WithoutCancel(ctx), end)
	if told {
		_ = e.nc.SetReadDeadline(end) // fails if the guest has hung up; the next read reports that
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
				return cancelledResult(r, cause), nil
			}
		}
	}
	err := &lostError{op: e.op, cause: fmt.Errorf("no ending within the time limit after the cancellation: %w", cause)}
	return runtime.Result{}, errors.Join(err, fmt.Errorf("%s: %w", e.op, cause))
}

// kill sends SIGKILL to the command if it has started.
func (e *execution) kill(ctx context.Context, end time.Time) bool {
	if !e.started {
		return false
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	err := e.client.Signal(ctx, wire.Signal{ID: e.id, Number: int(syscall.SIGKILL), All: true})
	_, refused := errors.AsType[*Error](err) // it has just ended
	return err == nil || refused
}

// cancelledResult adjusts a result that the host caused, of which the guest saw only an ended
// stream or a signal. Failed output or input cancels the command even if it ended at that moment,
// because the caller lacks a part of it.
func cancelledResult(r runtime.Result, cause error) runtime.Result {
	switch {
	case errors.Is(cause, errOutput):
		r.Ending, r.Detail = runtime.Cancelled, detailOutput
	case errors.Is(cause, errInput):
		r.Ending, r.Detail = runtime.Cancelled, detailInput
	case r.Ending == runtime.Signalled && r.Signal == int(syscall.SIGKILL), r.Ending == runtime.SandboxLost,
		r.Ending == runtime.Cancelled:
		r.Ending, r.Detail = runtime.Cancelled, cmp.Or(r.Detail, cancelDetail(cause))
	}
	return r
}

func cancelDetail(cause error) string {
	switch {
	case errors.Is(cause, context.Canceled):
		return detailCaller
	case errors.Is(cause, context.DeadlineExceeded):
		return detailTime
	}
	return cleanText(cause.Error(), maxDetail)
}

// lostResult adjusts a result that the host did not cause. If the guest reports it as cancelled,
// the connection between them broke. Only in a session, a signal from another stream can also
// cancel a command.
func (e *execution) lostResult(r runtime.Result) runtime.Result {
	switch {
	case r.Ending == runtime.Cancelled && e.op == wire.OpSessionExec:
		r.Detail = cmp.Or(r.Detail, detailSignal)
	case r.Ending == runtime.Cancelled, r.Ending == runtime.SandboxLost:
		r.Ending, r.Detail = runtime.SandboxLost, cmp.Or(r.Detail, detailGuest)
	}
	return r
}
