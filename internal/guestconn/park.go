package guestconn

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// minBackoff and maxBackoff bound the pause between two attempts while no host listens. They
	// are short because a restarted host finds its warm sandboxes only once these reconnect.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// settled is how long a stream must have been parked for its loss not to count as a refusal.
	settled = time.Second
	// presenceEvery is how often a parked stream is reported as the host's presence.
	presenceEvery = time.Second
	// maxPath is the longest address of a unix socket. A longer one goes through the directory's
	// descriptor.
	maxPath = len(unix.RawSockaddrUnix{}.Path) - 1
)

// Park is the guest's end of the local transport. It keeps n streams parked at the host's listener
// at path. It replaces used or lost ones, with pauses of 5 to 100 ms while no host listens, and
// calls serve in a new goroutine for each stream that the host opens. serve owns the stream until
// it returns. Park then closes it unless serve kept it; a kept stream no longer counts here.
//
// Park calls seen, from several goroutines, whenever a host is present: when it accepts or opens a
// stream, and every second while a stream is parked. seen must be fast.
//
// At most [MaxServed] streams exist at once. At this limit nothing is parked until one ends. When
// ctx ends, Park closes every stream, waits for every serve and returns the cause of ctx.
func Park(ctx context.Context, path string, n int, serve func(net.Conn) (kept bool), seen func()) error {
	if n < 1 || n > MaxServed {
		return fmt.Errorf("park %d streams: want 1 to %d", n, MaxServed)
	}
	p := &parker{path: path, serve: serve, seen: seen, slots: make(chan struct{}, MaxServed)}
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() { p.run(ctx) })
	}
	wg.Go(func() { p.presence(ctx) })
	wg.Wait()
	p.serving.Wait()
	return context.Cause(ctx)
}

type parker struct {
	path  string
	serve func(net.Conn) (kept bool)
	seen  func()

	slots   chan struct{} // one token per stream
	parked  atomic.Int64
	serving sync.WaitGroup
}

// run parks one stream after another.
func (p *parker) run(ctx context.Context) {
	wait := minBackoff
	for {
		select {
		case p.slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		since := time.Now()
		conn, err := p.park(ctx)
		if err == nil {
			wait = minBackoff
			p.serving.Go(func() { p.serveStream(ctx, conn) })
			continue
		}
		<-p.slots
		// A host that takes the stream and drops it immediately (it is full, or of another version)
		// gets the same backoff as a missing host.
		if time.Since(since) >= settled {
			wait = minBackoff
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(2*wait, maxBackoff)
	}
}

// park dials, sends the greeting and waits until the host opens the stream.
func (p *parker) park(ctx context.Context) (_ net.Conn, err error) {
	conn, err := dial(ctx, p.path)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer func() {
		if !stop() || err != nil {
			_ = conn.Close()
		}
	}()
	if err := conn.SetWriteDeadline(time.Now().Add(HelloTimeout)); err != nil {
		return nil, err
	}
	if _, err := conn.Write(hello()); err != nil {
		return nil, err
	}
	if err := conn.SetWriteDeadline(time.Time{}); err != nil {
		return nil, err
	}
	p.seen()
	p.parked.Add(1)
	defer p.parked.Add(-1)
	var b [1]byte
	if _, err := conn.Read(b[:]); err != nil {
		return nil, err
	}
	if b[0] != startByte {
		return nil, errors.New("the host opened the stream with an invalid byte")
	}
	p.seen()
	return conn, nil
}

// serveStream runs serve on an open stream.
func (p *parker) serveStream(ctx context.Context, conn net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	kept := false
	defer func() {
		if !stop() || !kept {
			_ = conn.Close()
		}
		<-p.slots
	}()
	kept = p.serve(conn)
}

// presence reports the host while streams are parked. If every slot is in use, none is parked
// although the host may be alive, so it dials the host instead.
func (p *parker) presence(ctx context.Context) {
	tick := time.NewTicker(presenceEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch {
		case p.parked.Load() > 0:
			p.seen()
		case len(p.slots) == cap(p.slots):
			if conn, err := dial(ctx, p.path); err == nil {
				_ = conn.Close()
				p.seen()
			}
		}
	}
}

func dial(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	if len(path) <= maxPath {
		return d.DialContext(ctx, "unix", path)
	}
	dir, name, err := openDir(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return d.DialContext(ctx, "unix", addressIn(dir, name))
}
