package server

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/sandbox-orchestrator/orchestrator/internal/guest/wire"
	"github.com/sandbox-orchestrator/orchestrator/internal/guestconn/relay"
)

// errCarried says that a stream is not answered any more: it carries a
// connection, and is closed with that.
var errCarried = errors.New("the stream carries a connection")

const (
	// Of the descriptors that the guest may have, connections of the proxy get a
	// quarter and dials a sixteenth, two each. With runtime.DefaultOpenFiles that
	// is as many as the protocol allows.
	filesPerProxied = 8
	filesPerDial    = 32
)

// carrier owns connections between streams and the sandbox's loopback. They are
// counted by themselves, so that requests always have streams.
type carrier struct {
	pool  *relay.Pool
	slots chan struct{} // one per connection
	group sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func newCarrier(pool *relay.Pool, most int) *carrier {
	return &carrier{pool: pool, slots: make(chan struct{}, max(most, 1)), open: make(map[net.Conn]struct{})}
}

// openFiles is how many descriptors this process may have.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<20))
}

// add takes over a connection, for which there is a slot; false: none is taken
// any more, and it is closed.
func (c *carrier) add(conn net.Conn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		conn.Close()
		<-c.slots
		return false
	}
	relay.Bound(conn, len(c.open))
	c.open[conn] = struct{}{}
	return true
}

// drop closes a connection and gives its slot back.
func (c *carrier) drop(conn net.Conn) {
	conn.Close()
	c.mu.Lock()
	delete(c.open, conn)
	c.mu.Unlock()
	<-c.slots
}

// wait returns when nothing is carried any more; after close.
func (c *carrier) wait() { c.group.Wait() }

// join tells the host that the stream carries a connection that was added, and
// has it do so. An error other than errCarried: the stream cannot, and the
// connection is as it was.
func (c *carrier) join(stream *wire.Conn, conn net.Conn) error {
	c.mu.Lock()
	beside := max(len(c.open)-1, 0)
	c.mu.Unlock()
	stream.SetWriteDeadline(time.Now().Add(wire.HeaderTime)) //nolint:errcheck // closed: the write says so
	if err := stream.WriteJSON(wire.KindStarted, wire.Started{Beside: beside}); err != nil {
		return err
	}
	raw, err := stream.Raw()
	if err == nil {
		err = raw.SetDeadline(time.Time{})
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed { // the connection is, too
		return net.ErrClosed
	}
	relay.Bound(raw, beside)
	c.group.Go(func() {
		c.pool.Join(raw, conn)
		c.drop(conn)
	})
	return errCarried
}

// end closes all connections that there are.
func (c *carrier) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		conn.Close()
	}
}

// close ends them and refuses further ones.
func (c *carrier) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.end()
}
