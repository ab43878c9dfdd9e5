package netpolicy

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// endTime is how long the other direction may go on where a stream cannot end
// one direction alone: what ended there is the end of both.
const endTime = 5 * time.Second

// spend counts bytes of a tunnel.
func (f *flow) spend(inward bool, n int) {
	f.count(inward, n)
	if inward {
		f.s.spend(&f.s.received, n)
	} else {
		f.s.spend(&f.s.sent, n)
	}
}

// relay carries bytes in both directions until both have ended, head first to
// the outside. What was read before an end is written before the end is passed
// on. It closes the outside, and both when the flow ends early. The error is
// what broke off; where the flow ended early, that reason.
func (f *flow) relay(inside, outside io.ReadWriteCloser, head []byte, count func(inward bool, n int)) error {
	defer outside.Close()
	defer context.AfterFunc(f.ctx, func() {
		inside.Close()
		outside.Close()
	})()
	f.watched(inside, outside)
	// What was too much, or comes after an early end, is not sent on.
	ask := func(inward bool) func(int) error {
		return func(n int) error {
			count(inward, n)
			return context.Cause(f.ctx)
		}
	}
	if len(head) > 0 {
		if err := ask(false)(len(head)); err != nil {
			return err
		}
		if _, err := outside.Write(head); err != nil {
			return brokeOff(err)
		}
	}
	var done sync.WaitGroup
	var sentErr error
	done.Go(func() { sentErr = f.s.carry(outside, inside, ask(false)) })
	err := f.s.carry(inside, outside, ask(true))
	done.Wait()
	return brokeOff(err, sentErr)
}

// brokeOff is the error of two directions: the end of one closes the other, so
// that a closed connection is the better reason only where there is no other.
func brokeOff(errs ...error) error {
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, net.ErrClosed)) {
			first = err
		}
	}
	if first == nil {
		return nil
	}
	return unreached("the connection broke off", first)
}

// carry copies one direction to its end, which it passes on. After an error
// neither side is of use, and both are closed.
func (s *Session) carry(dst, src io.ReadWriteCloser, count func(n int) error) error {
	if _, err := s.buffers.CopyCounted(dst, src, count); err != nil {
		src.Close()
		dst.Close()
		return err
	}
	endDirection(dst, src)
	return nil
}

// endDirection passes the end of src on. Where src cannot end alone, nothing
// that dst still says will find anybody; where dst cannot, it is closed.
func endDirection(dst, src io.ReadWriteCloser) {
	if closeWrite(dst) != nil {
		dst.Close()
		return
	}
	if _, ok := src.(interface{ CloseWrite() error }); !ok {
		if d, ok := dst.(net.Conn); ok {
			d.SetReadDeadline(time.Now().Add(endTime))
		}
	}
}

// counted is a connection to the outside on which the HTTP client speaks.
type counted struct {
	net.Conn // and no more: a ReadFrom of TCP would go past Write
	s        *Session
	left     func() // says that it is closed; may be called twice
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.left()
	return c.Conn.Close()
}

// Read implements net.Conn.
func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.count(&c.s.received, n)
	return n, err
}

// Write implements net.Conn.
func (c *counted) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.count(&c.s.sent, n)
	return n, err
}

// CloseWrite ends one direction.
func (c *counted) CloseWrite() error { return closeWrite(c.Conn) }

func (c *counted) count(counter *atomic.Int64, n int) {
	if n > 0 {
		c.s.spend(counter, n)
	}
}
