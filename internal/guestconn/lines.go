package guestconn

import (
	"bufio"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// abandoned is how long a guest keeps a line without a connection: longer than the host tries to
	// connect.
	abandoned = OutageTime + 5*time.Second
	// maxLines is how many lines a guest keeps. There is more than one only while an earlier host is
	// still connected.
	maxLines = 4
	// drainTime is how long a guest that ends waits until the host has read its answers.
	drainTime = 5 * time.Second
	drainPoll = 5 * time.Millisecond
)

var (
	errReplaced  = errors.New("the host connected again")
	errNewLine   = errors.New("the host began a new line")
	errAbandoned = fmt.Errorf("the host did not connect again within %s", abandoned)
)

// ServeBridges is the guest's end of lines whose bridges ([Pipe]) connect to ln. It calls serve in
// a new goroutine for each stream that the host opens, as [Park] does. It calls seen when a host
// connects, and every second while one is connected. seen must be fast.
//
// Only processes of this process's user are served. A line without a connection is kept for 68
// seconds, or until a host begins another one.
//
// When ctx ends, ServeBridges gives the host a second to read the answers under way, closes every
// stream and ln, and returns.
func ServeBridges(ctx context.Context, ln *net.UnixListener, serve func(net.Conn) (kept bool), seen func()) {
	s := &lineServer{serve: serve, seen: seen, uid: uint32(os.Geteuid())}
	var accepting sync.WaitGroup
	accepting.Go(func() { s.accept(ctx, ln) })
	s.watch(ctx)
	_ = ln.Close()
	accepting.Wait()
	s.close()
}

// lineServer is the guest's end of lines.
type lineServer struct {
	serve func(net.Conn) (kept bool)
	seen  func()
	uid   uint32
	wg    sync.WaitGroup

	mu     sync.Mutex
	lines  []*guestLine // oldest first
	epoch  int64        // the highest one seen
	closed bool
}

// guestLine is the guest's end of one line. The lineServer's mu guards its fields.
type guestLine struct {
	id      lineID
	line    *line
	streams atomic.Int64
	attempt uint32      // of the latest connection
	alone   *time.Timer // runs while the line has no connection
	last    bool        // the host has begun another line: no connection follows the current one
}

func (s *lineServer) accept(ctx context.Context, ln *net.UnixListener) {
	for {
		conn, err := ln.AcceptUnix()
		switch {
		case err == nil:
			s.wg.Go(func() { s.greet(ctx, conn) })
		case ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return
		default:
			time.Sleep(10 * time.Millisecond) // out of descriptors: try again
		}
	}
}

// greet makes a bridge's connection that of its line, or closes it.
func (s *lineServer) greet(ctx context.Context, conn *net.UnixConn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := bufio.NewReaderSize(conn, readBuffer)
	g, err := s.readGreeting(conn, in)
	if err == nil {
		err = s.attach(g, conn, in)
	}
	switch {
	case errors.Is(err, ErrVersion):
		_, _ = conn.Write(encodeAnswer(answerVersion, 0))
	case errors.Is(err, ErrGone):
		_, _ = conn.Write(encodeAnswer(answerUnknown, 0))
	case errors.Is(err, ErrFenced):
		_, _ = conn.Write(encodeAnswer(answerFenced, 0))
	}
	if err != nil {
		_ = conn.Close()
	}
}

// readGreeting returns the greeting of a connection after the host has confirmed it.
func (s *lineServer) readGreeting(conn *net.UnixConn, in io.Reader) (g greeting, err error) {
	cred, err := peerCredentials(conn)
	if err != nil {
		return g, err
	}
	if cred.Uid != s.uid {
		return g, fmt.Errorf("the bridge is of user %d, expected %d", cred.Uid, s.uid)
	}
	if err := conn.SetDeadline(time.Now().Add(HelloTimeout)); err != nil {
		return g, err
	}
	b := make([]byte, greetingSize)
	if _, err := io.ReadFull(in, b); err != nil {
		return g, err
	}
	if g, err = decodeGreeting(b); err != nil || !g.fresh {
		return g, err
	}
	if _, err := conn.Write(encodeAnswer(answerReady, 0)); err != nil {
		return g, err
	}
	return g, readConfirm(in)
}

// attach makes conn the connection of the greeting's line, which it begins if the greeting is
// fresh.
func (s *lineServer) attach(g greeting, conn *net.UnixConn, in *bufio.Reader) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.epoch < s.epoch { // a host that was paused must not end the lines of its successor
		return ErrFenced
	}
	s.epoch = g.epoch
	l := s.find(g)
	if l == nil {
		return ErrGone
	}
	if g.attempt <= l.attempt {
		return errReplaced // it was delayed
	}
	l.attempt = g.attempt
	received := l.line.pause(errReplaced)
	l.alone.Reset(abandoned) // in case that this connection fails before it is used
	if _, err := conn.Write(encodeAnswer(answerReady, received)); err != nil {
		return err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return err
	}
	a, err := l.line.attach(conn, in, g.received)
	if err != nil {
		return err
	}
	l.alone.Stop()
	s.seen()
	s.wg.Go(func() {
		<-a.gone
		s.detached(l)
	})
	return nil
}

// find returns the line of a greeting. The caller holds mu.
func (s *lineServer) find(g greeting) *guestLine {
	for _, l := range s.lines {
		if subtle.ConstantTimeCompare(l.id[:], g.id[:]) == 1 {
			if l.line.ended() {
				return nil
			}
			return l
		}
	}
	if !g.fresh || s.closed {
		return nil
	}
	return s.begin(g.id)
}

// begin starts a line, and ends earlier ones: those without a connection now, the others when they
// lose it. The caller holds mu.
func (s *lineServer) begin(id lineID) *guestLine {
	for i, l := range s.lines {
		l.last = true
		if l.line.detached() || i <= len(s.lines)-maxLines {
			l.line.fail(errNewLine)
		}
	}
	l := &guestLine{id: id, line: newLine()}
	l.alone = time.AfterFunc(abandoned, func() { s.abandon(l) })
	s.lines = append(s.lines, l)
	s.wg.Go(func() {
		_ = serveMux(context.Background(), l.line, s.open, &l.streams)
		_ = l.line.Close()
		l.alone.Stop()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.lines = slices.DeleteFunc(s.lines, func(other *guestLine) bool { return other == l })
		if n := len(s.lines); n > 0 { // the host of the line that ended has left
			s.lines[n-1].last = false
		}
	})
	return l
}

// open makes a stream to serve, which sees the other end of a socket pair.
func (s *lineServer) open(context.Context) (net.Conn, error) {
	near, far, err := socketPair()
	if err != nil {
		return nil, err
	}
	s.wg.Go(func() {
		if !s.serve(far) {
			_ = far.Close()
		}
	})
	return near, nil
}

// detached starts the time in which a line that has lost its connection must get another one.
func (s *lineServer) detached(l *guestLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !l.line.detached():
	case l.last:
		l.line.fail(errNewLine)
	default:
		l.alone.Reset(abandoned)
	}
}

func (s *lineServer) abandon(l *guestLine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.line.detached() {
		l.line.fail(errAbandoned)
	}
}

// watch reports the host's presence until ctx ends and the host has read the answers under way.
func (s *lineServer) watch(ctx context.Context) {
	tick := time.NewTicker(presenceEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		if connected, _ := s.busy(); connected {
			s.seen()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	for end := time.Now().Add(drainTime); time.Now().Before(end); time.Sleep(drainPoll) {
		if _, streams := s.busy(); streams == 0 {
			return
		}
	}
}

// busy reports whether a host is connected, and how many streams connected hosts have open.
func (s *lineServer) busy() (connected bool, streams int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.lines {
		if !l.line.detached() {
			connected = true
			streams += l.streams.Load()
		}
	}
	return connected, streams
}

// close ends all lines and waits for their streams.
func (s *lineServer) close() {
	s.mu.Lock()
	s.closed = true
	lines := slices.Clone(s.lines)
	s.mu.Unlock()
	for _, l := range lines {
		s.wg.Go(func() { _ = l.line.Close() })
	}
	s.wg.Wait()
}

// socketPair returns two connected sockets.
func socketPair() (near, far net.Conn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a stream: %w", err)
	}
	conns := make([]net.Conn, len(fds))
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "stream")
		var connErr error
		conns[i], connErr = net.FileConn(f)
		err = errors.Join(err, connErr, f.Close())
	}
	if err != nil {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, fmt.Errorf("make a stream: %w", err)
	}
	return conns[0], conns[1], nil
}
