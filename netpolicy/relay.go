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

// halfCloseTime limits the other direction after one ended, if the stream cannot close one
// direction only.
const halfCloseTime = 5 * time.Second

// spend counts a tunnel's bytes for the flow and the session.
func (f *flow) spend(inward bool, n int) {
	f.count(inward, n)
	if inward {
		f.s.spend(&f.s.received, n)
	} else {
		f.s.spend(&f.s.sent, n)
	}
}

// relay copies bytes in both directions until both have ended. It sends head to the outside first,
// and passes on the end of a direction after its last byte. It closes outside, and both if the flow
// ends early. The error is what failed, or the reason of an early end.
func (f *flow) relay(inside, outside io.ReadWriteCloser, head []byte, count func(inward bool, n int)) error {
	defer outside.Close()
	defer context.AfterFunc(f.ctx, func() {
		inside.Close()
		outside.Close()
	})()
	f.watchQueues(inside, outside)
	// Do not forward bytes that exceed the limit or arrive after an early end.
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
			return relayError(err)
		}
	}
	var done sync.WaitGroup
	var sentErr error
	done.Go(func() { sentErr = f.s.copyDirection(outside, inside, ask(false)) })
	err := f.s.copyDirection(inside, outside, ask(true))
	done.Wait()
	return relayError(err, sentErr)
}

// relayError returns the error of two directions. The end of one closes the other, so a closed
// connection is the reason only without another.
func relayError(errs ...error) error {
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

// copyDirection copies one direction until it ends, and passes the end on. After an error it closes
// both.
func (s *Session) copyDirection(dst, src io.ReadWriteCloser, count func(n int) error) error {
	if _, err := s.buffers.CopyCounted(dst, src, count); err != nil {
		src.Close()
		dst.Close()
		return err
	}
	endDirection(dst, src)
	return nil
}

// endDirection passes on the end of src. If dst cannot close one direction, it is closed. If src
// cannot, the time for its other direction is limited, because the peer may no longer read.
func endDirection(dst, src io.ReadWriteCloser) {
	if closeWrite(dst) != nil {
		dst.Close()
		return
	}
	if _, ok := src.(interface{ CloseWrite() error }); !ok {
		if d, ok := dst.(net.Conn); ok {
			d.SetReadDeadline(time.Now().Add(halfCloseTime))
		}
	}
}

// countedConn is a connection to a server that counts the session's bytes.
type countedConn struct {
	net.Conn // not *net.TCPConn: its ReadFrom would bypass Write
	s        *Session
	onClose  func() // called on Close, possibly twice
}

// Close implements net.Conn.
func (c *countedConn) Close() error {
	c.onClose()
	return c.Conn.Close()
}

// Read implements net.Conn.
func (c *countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.count(&c.s.received, n)
	return n, err
}

// Write implements net.Conn.
func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.count(&c.s.sent, n)
	return n, err
}

// CloseWrite closes the write direction.
func (c *countedConn) CloseWrite() error { return closeWrite(c.Conn) }

func (c *countedConn) count(counter *atomic.Int64, n int) {
	if n > 0 {
		c.s.spend(counter, n)
	}
}
