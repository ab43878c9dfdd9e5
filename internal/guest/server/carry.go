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

// errCarried reports that the stream now carries a connection. The stream gets no answer and is
// closed with the connection.
var errCarried = errors.New("the stream carries a connection")

const (
	// Connections of the proxy may use a quarter of the guest's descriptors and dials a sixteenth.
	// Each needs two. With runtime.DefaultOpenFiles this allows as many connections as the
	// protocol.
	filesPerProxied = 8
	filesPerDial    = 32
)

// carrier owns the connections between streams and the sandbox's loopback. They have their own
// limit, so that requests always find a free stream.
type carrier struct {
	pool  *relay.Pool
	slots chan struct{} // one token per connection
	group sync.WaitGroup

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func newCarrier(pool *relay.Pool, most int) *carrier {
	return &carrier{pool: pool, slots: make(chan struct{}, max(most, 1)), open: make(map[net.Conn]struct{})}
}

// openFiles returns the descriptor limit of this process.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<20))
}

// add takes over a connection for which the caller holds a slot. If the carrier is closed, it
// closes the connection and returns false.
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

// drop closes a connection and frees its slot.
func (c *carrier) drop(conn net.Conn) {
	conn.Close()
	c.mu.Lock()
	delete(c.open, conn)
	c.mu.Unlock()
	<-c.slots
}

// cut closes what is carried.
func (c *carrier) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		conn.Close()
	}
}

// wait returns once nothing is carried any more. Call it after close.
func (c *carrier) wait() { c.group.Wait() }

// carry tells the host that the stream carries conn from now on, starts copying and returns
// errCarried. On any other error, the stream is unusable and conn is unchanged.
func (c *carrier) carry(stream *wire.Conn, conn net.Conn) error {
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
	if c.closed { // close has closed conn as well
		return net.ErrClosed
	}
	relay.Bound(raw, beside)
	c.group.Go(func() {
		c.pool.Join(raw, conn)
		c.drop(conn)
	})
	return errCarried
}

// closeAll closes all connections.
func (c *carrier) closeAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		conn.Close()
	}
}

// close closes all connections and makes add fail.
func (c *carrier) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.closeAll()
}
