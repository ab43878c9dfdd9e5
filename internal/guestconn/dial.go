package guestconn

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"
)

const (
	// ResumeTime is how long a mux waits for its next connection after one broke.
	ResumeTime = 30 * time.Second
	// OutageTime is the longest time without data after which a stream of a mux can still continue: a
	// break is noticed late, and the next connection takes up to ResumeTime. Time limits of what runs
	// over streams must exceed it.
	OutageTime = stall + keepAlive + ResumeTime
	// firstDial and lastDial are the pauses between two attempts to connect. A connection that lasted
	// shorter than steady does not reset them: a guest must not make the host dial in a loop.
	firstDial = 50 * time.Millisecond
	lastDial  = 2 * time.Second
	steady    = 10 * time.Second
	// dialTime bounds one attempt.
	dialTime = 20 * time.Second
)

// Dialer makes connections to the bridge of one sandbox.
type Dialer struct {
	// Dial starts a bridge and returns its stdin and stdout. Close must unblock Read and Write.
	Dial func(ctx context.Context) (io.ReadWriteCloser, error)
	// Final reports whether a failure of Dial ends a broken mux at once. Nil means never.
	Final func(error) bool
	// Epoch is that of the host. A guest refuses to begin a mux for a lower epoch than it has seen.
	Epoch int64
	// Resumed, if not nil, is called with the reason after a broken connection was replaced.
	Resumed func(cause error)
}

// DialMux connects to the guest through a bridge, and starts a mux that replaces its connection
// whenever that breaks: its streams continue without a lost or repeated byte. The mux is lost if no
// connection is made within [ResumeTime], if the guest does not know it any more ([ErrGone]), or
// when life ends. ctx bounds the first connection only. [ErrVersion]: the guest is of another
// version. [ErrFenced]: the host was replaced.
func DialMux(ctx, life context.Context, d Dialer) (*Mux, error) {
	h := newHostLine(d)
	a, err := h.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to the sandbox: %w", err)
	}
	m, err := newMux(h.line)
	if err != nil {
		return nil, err
	}
	m.wg.Go(func() { h.keep(life, a) })
	return m, nil
}

// hostLine is the host's end of a line.
type hostLine struct {
	Dialer
	line    *line
	id      lineID
	attempt uint32
	begun   bool // the guest has the line
}

func newHostLine(d Dialer) *hostLine {
	h := &hostLine{Dialer: d, line: newLine()}
	rand.Read(h.id[:]) // it never fails
	return h
}

// connect makes one connection.
func (h *hostLine) connect(ctx context.Context) (*attachment, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, dialTime, fmt.Errorf("no answer of a bridge within %s", dialTime))
	defer cancel()
	rwc, err := h.Dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = rwc.Close() })
	defer stop()
	in := bufio.NewReaderSize(rwc, readBuffer)
	counted, err := h.greet(rwc, in)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return nil, errors.Join(err, rwc.Close())
	}
	h.begun = true
	return h.line.attach(rwc, in, counted)
}

// greet returns how many bytes the guest has counted. If a write fails, the following read says
// why.
func (h *hostLine) greet(w io.Writer, in io.Reader) (uint64, error) {
	h.attempt++
	g := greeting{id: h.id, fresh: !h.begun, attempt: h.attempt, received: h.line.pause(nil), epoch: h.Epoch}
	_, _ = w.Write(g.encode())
	counted, err := readAnswer(in)
	if err != nil || !g.fresh {
		return counted, err
	}
	_, _ = w.Write([]byte{confirmByte})
	return readAnswer(in)
}

// keep replaces broken connections until the line ends.
func (h *hostLine) keep(life context.Context, a *attachment) {
	life, cancel := context.WithCancel(life)
	go func() { // ends with the line, and that with this function
		<-h.line.done
		cancel()
	}()
	pause := firstDial
	for {
		select {
		case <-a.gone:
		case <-h.line.done:
			return
		}
		if time.Since(a.since) >= steady {
			pause = firstDial
		}
		next, err := h.resume(life, &pause)
		if err != nil {
			h.line.fail(fmt.Errorf("the connection broke (%w) and was not resumed: %w", a.cause, err))
			return
		}
		if h.Resumed != nil {
			h.Resumed(a.cause)
		}
		a = next
	}
}

// resume connects again within ResumeTime.
func (h *hostLine) resume(life context.Context, pause *time.Duration) (*attachment, error) {
	ctx, cancel := context.WithTimeoutCause(life, ResumeTime, fmt.Errorf("no connection within %s", ResumeTime))
	defer cancel()
	var err error
	for {
		select {
		case <-time.After(*pause):
		case <-ctx.Done():
			if err != nil {
				return nil, fmt.Errorf("%w; the last attempt failed: %w", context.Cause(ctx), err)
			}
			return nil, context.Cause(ctx)
		}
		*pause = min(2**pause, lastDial)
		var a *attachment
		a, err = h.connect(ctx)
		switch {
		case err == nil:
			return a, nil
		case errors.Is(err, ErrGone), errors.Is(err, ErrVersion), errors.Is(err, ErrFenced), h.Final != nil && h.Final(err):
			return nil, err
		}
	}
}
