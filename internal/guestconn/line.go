package guestconn

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// lineWindow is how many sent bytes an end keeps until the other acknowledges them. Writers wait
	// at this limit, so it bounds the memory of a line, whatever the other end does.
	lineWindow = 1 << 20
	// ackEvery is how many bytes an end receives before it acknowledges them without data to send.
	ackEvery = 128 << 10
	// lineData is the largest payload of a frame.
	lineData = 64 << 10
	// readBuffer is the buffer of a connection's reader.
	readBuffer = 64 << 10
	// keepAlive is how often an end sends a frame at least. A connection that delivers nothing for
	// stall is dead.
	keepAlive = 8 * time.Second
	stall     = 25 * time.Second
	// closeTime bounds how long Close waits until the other end knows.
	closeTime = time.Second
)

// The frame of a line: a big-endian uint32 length, whose highest bit ends the line, the uint64
// number of bytes received so far, and the payload.
const (
	lineHeader = 4 + 8
	finalFrame = 1 << 31
)

var (
	// errSilent is why a connection is given up.
	errSilent = fmt.Errorf("no data for %s", stall)
	// errStuck ends a line whose other end is connected but does not take what it is sent.
	errStuck = fmt.Errorf("nothing was acknowledged for %s", stall)
)

var lineFrames = sync.Pool{New: func() any { return new([lineHeader + lineData]byte) }}

// line is one end of a byte stream that outlives its connections. Each end counts the bytes that it
// has received, and keeps those that it has sent until the other end has counted them. Over the
// next connection each end continues where the other's count ends, so no byte is lost or repeated.
//
// Read is for one goroutine, the other methods for any. Without a connection, Read waits,
// and Write waits once lineWindow bytes are kept. A line ends with Close, with the other end's
// Close (io.EOF), or with fail.
type line struct {
	done chan struct{} // closed at the end
	wg   sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond  // anything below, except received, changed
	at      *attachment // nil: no connection
	err     error       // set at the end
	closing bool        // Close was called: the next frame ends the line

	out     ring   // the bytes from acked to acked+out.n
	acked   uint64 // bytes that the other end has counted
	sent    uint64 // bytes that were sent over this connection or are known to have arrived
	highest uint64 // bytes that were ever sent

	received uint64
	reported uint64 // the last count that was sent
}

// attachment is a connection of a line.
type attachment struct {
	rwc   io.ReadWriteCloser
	in    *bufio.Reader
	left  int           // unread payload of the current frame; used by Read only
	gone  chan struct{} // closed when the connection is not used any more
	since time.Time
	timer *time.Timer

	// Guarded by the line's mu.
	cause error // why it is gone
	heard time.Time
	wrote time.Time
	moved time.Time // when acked changed last while bytes were unacknowledged
	beat  bool      // a frame is due, even an empty one
	final bool      // the frame that ends the line was sent
}

func newLine() *line {
	l := &line{done: make(chan struct{})}
	l.changed = sync.NewCond(&l.mu)
	return l
}

// attach continues the line over a new connection whose other end has counted so many bytes. The
// line must have told it its own count by pause, and takes ownership of rwc.
func (l *line) attach(rwc io.ReadWriteCloser, in *bufio.Reader, counted uint64) (*attachment, error) {
	now := time.Now()
	a := &attachment{rwc: rwc, in: in, gone: make(chan struct{}), since: now, heard: now, wrote: now, moved: now}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil, errors.Join(l.err, rwc.Close())
	}
	if err := l.count(counted, l.highest); err != nil {
		l.end(err)
		return nil, errors.Join(err, rwc.Close())
	}
	l.sent = counted
	l.at = a
	l.changed.Broadcast()
	l.wg.Go(func() { l.send(a) })
	a.timer = time.AfterFunc(keepAlive, func() { l.tick(a) })
	return a, nil
}

// pause gives up the current connection, and returns the count for the next one.
func (l *line) pause(cause error) uint64 {
	l.mu.Lock()
	a := l.at
	l.mu.Unlock()
	if a != nil {
		l.detach(a, cause)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reported = l.received
	return l.received
}

// detach gives up a connection. The line continues with the next one.
func (l *line) detach(a *attachment, cause error) {
	l.mu.Lock()
	l.drop(a, cause)
	l.mu.Unlock()
	_ = a.rwc.Close()
}

// detached reports whether the line has no connection.
func (l *line) detached() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.at == nil
}

// ended reports whether the line has ended.
func (l *line) ended() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// drop removes a connection from the line; the caller, which holds mu, closes it.
func (l *line) drop(a *attachment, cause error) {
	if l.at != a {
		return
	}
	l.at = nil
	a.cause = cause
	a.timer.Stop()
	close(a.gone)
	l.changed.Broadcast()
}

// count handles a count of the other end, which cannot exceed limit. The caller holds mu.
func (l *line) count(n, limit uint64) error {
	if n < l.acked || n > limit {
		return fmt.Errorf("invalid acknowledgement of %d bytes, want %d to %d", n, l.acked, limit)
	}
	l.out.drop(int(n - l.acked))
	l.acked = n
	return nil
}

// end ends the line. The caller holds mu.
func (l *line) end(err error) {
	if l.err != nil {
		return
	}
	l.err = err
	close(l.done)
	l.changed.Broadcast()
}

// fail ends the line with an error that Read and Write then return.
func (l *line) fail(err error) {
	l.mu.Lock()
	l.end(err)
	a := l.at
	l.mu.Unlock()
	if a != nil {
		l.detach(a, err)
	}
}

// Close ends the line at both ends, after the bytes that were written. It waits up to closeTime
// until the other end has hung up, and drops what was not delivered by then.
func (l *line) Close() error {
	l.mu.Lock()
	a := l.at
	l.closing = true
	l.changed.Broadcast()
	l.mu.Unlock()
	if a != nil && !l.ended() {
		select {
		case <-a.gone:
		case <-time.After(closeTime):
		}
	}
	l.fail(net.ErrClosed)
	l.wg.Wait()
	return nil
}

// tick gives up a dead connection, and makes the line send a frame if it has sent none for long.
func (l *line) tick(a *attachment) {
	l.mu.Lock()
	now := time.Now()
	dead := now.Sub(a.heard) >= stall
	if l.at == a && !dead && l.sent > l.acked && now.Sub(a.moved) >= stall {
		l.end(errStuck)
		dead = true
	}
	if l.at == a && !dead {
		l.out.shrink()
		a.beat = now.Sub(a.wrote) >= keepAlive-time.Second
		l.changed.Broadcast()
		a.timer.Reset(keepAlive)
	}
	l.mu.Unlock()
	if dead {
		l.detach(a, errSilent)
	}
}

// Write sends b, now or over a later connection. It waits while too much is unacknowledged.
func (l *line) Write(b []byte) (n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for n < len(b) {
		for l.err == nil && !l.closing && l.out.n == lineWindow {
			l.changed.Wait()
		}
		switch {
		case l.err != nil:
			return n, l.err
		case l.closing:
			return n, net.ErrClosed
		}
		m := min(len(b)-n, lineWindow-l.out.n)
		l.out.add(b[n : n+m])
		n += m
		l.changed.Broadcast()
	}
	return n, nil
}

// send writes frames to a connection until it is gone.
func (l *line) send(a *attachment) {
	for {
		frame, size := l.nextFrame(a)
		if frame == nil {
			return
		}
		_, err := a.rwc.Write(frame[:size])
		lineFrames.Put(frame)
		if err != nil {
			l.detach(a, err)
			return
		}
	}
}

// nextFrame waits until there is something to send, and returns nil when there never will be.
func (l *line) nextFrame(a *attachment) (frame *[lineHeader + lineData]byte, size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		if l.at != a || a.final {
			return nil, 0
		}
		if l.closing || a.beat || l.unsent() || l.received-l.reported >= ackEvery {
			break
		}
		l.changed.Wait()
	}
	frame = lineFrames.Get().(*[lineHeader + lineData]byte)
	if l.closing && !l.unsent() {
		a.final = true
		binary.BigEndian.PutUint32(frame[:], finalFrame)
		binary.BigEndian.PutUint64(frame[4:], l.received)
		return frame, lineHeader
	}
	if l.sent == l.acked {
		a.moved = time.Now()
	}
	n := l.out.copyFrom(frame[lineHeader:], int(l.sent-l.acked))
	l.sent += uint64(n)
	l.highest = max(l.highest, l.sent)
	l.reported = l.received
	a.beat, a.wrote = false, time.Now()
	binary.BigEndian.PutUint32(frame[:], uint32(n))
	binary.BigEndian.PutUint64(frame[4:], l.received)
	return frame, lineHeader + n
}

// unsent reports whether bytes wait to be sent. The caller holds mu.
func (l *line) unsent() bool { return l.sent < l.acked+uint64(l.out.n) }

// Read returns bytes that the other end has sent, in order. It returns io.EOF after the other end's
// Close.
func (l *line) Read(b []byte) (int, error) {
	for {
		a, err := l.attached()
		if err != nil {
			return 0, err
		}
		n, err := l.receive(a, b)
		if err != nil {
			l.detach(a, err)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// attached waits for a connection.
func (l *line) attached() (*attachment, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.at == nil && l.err == nil && !l.closing {
		l.changed.Wait()
	}
	switch {
	case l.err != nil:
		return nil, l.err
	case l.at == nil:
		return nil, net.ErrClosed
	}
	return l.at, nil
}

// receive reads payload of the current frame, or the next header. What it reads counts only if the
// connection is still the current one: the other end was told another count otherwise.
func (l *line) receive(a *attachment, b []byte) (int, error) {
	if a.left == 0 {
		return 0, l.receiveHeader(a)
	}
	n, err := a.in.Read(b[:min(len(b), a.left)])
	a.left -= n
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != a {
		return 0, err
	}
	a.heard = time.Now()
	l.received += uint64(n)
	if l.received-l.reported >= ackEvery {
		l.changed.Broadcast()
	}
	return n, err
}

func (l *line) receiveHeader(a *attachment) error {
	var head [lineHeader]byte
	if _, err := io.ReadFull(a.in, head[:]); err != nil {
		return err
	}
	size := binary.BigEndian.Uint32(head[:])
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at != a {
		return nil
	}
	a.heard = time.Now()
	before := l.acked
	if err := l.count(binary.BigEndian.Uint64(head[4:]), l.sent); err != nil {
		l.end(err)
		return err
	}
	if l.acked != before {
		a.moved = a.heard
		l.changed.Broadcast() // writers may have room
	}
	switch {
	case size == finalFrame:
		l.end(io.EOF)
		return io.EOF
	case size > lineData:
		err := fmt.Errorf("frame of %d bytes, at most %d", size, lineData)
		l.end(err)
		return err
	}
	a.left = int(size)
	return nil
}
