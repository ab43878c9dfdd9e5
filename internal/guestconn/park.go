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
	// minBackoff and maxBackoff bound how long a parker waits between two attempts while no host listens: short, because a
	// host that restarts finds its warm sandboxes only when they are back.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 100 * time.Millisecond
	// settled is how long a stream must have stayed parked for its loss to count as news and not as a refusal.
	settled = time.Second
	// presenceEvery is how often the dead-man clock is wound while nothing else happens.
	presenceEvery = time.Second
	// maxPath is the longest address a unix socket can have; a longer one goes through the folder's descriptor.
	maxPath = len(unix.RawSockaddrUnix{}.Path) - 1
)

// Park is the guest's end of the local way. It keeps n streams parked at the host's listener at path, redials what was
// used or lost (waiting 5 to 100 ms between attempts while nobody listens), and calls serve in a goroutine of its own
// for each stream the host opens. serve owns the stream until it returns; Park closes it then, unless serve kept it: a
// stream that was kept is not Park's any more and counts for nothing here.
//
// seen is called, from several goroutines, whenever a host is there: when it accepted a stream, at every use, and every
// second while a stream is parked. It must be quick; storing the time is what it is for.
//
// At most [MaxServed] streams are in hand at once; beyond that nothing is parked until one ends. Park returns the cause of
// ctx when ctx ends, after it closed every stream and every serve has returned.
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

	slots   chan struct{} // one per stream in hand
	parked  atomic.Int64
	serving sync.WaitGroup
}

// run parks one stream after the other.
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
			p.serving.Go(func() { p.hand(ctx, conn) })
			continue
		}
		<-p.slots
		// A host that takes the stream and drops it at once (full, or another version) is left alone as much as
		// one that is not there.
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

// park dials, greets and waits until the host opens the stream.
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
		return nil, errors.New("host opened the stream with an octet that is not ours")
	}
	p.seen()
	return conn, nil
}

// hand runs serve on an open stream.
func (p *parker) hand(ctx context.Context, conn net.Conn) {
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

// presence winds the dead-man clock while streams lie parked and nothing else does. With every slot in use none is parked
// although a host may well be there, so then it knocks.
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
