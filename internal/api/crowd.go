package api

import (
	chain "container/list"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

const (
	// crowdShare of the files that the service may open are connections of
	// clients. Whoever reaches the listener can make some, without a token: the
	// rest is for what the service itself does.
	crowdShare = 2
	// crowdQuiet is how long nothing more is logged of a crowd.
	crowdQuiet = time.Minute
)

// crowd bounds the connections that net/http has. One more, and that which has
// waited longest for a request is closed: who sends his at once is served,
// however many send none.
type crowd struct {
	most int
	log  *slog.Logger

	mu      sync.Mutex
	open    map[net.Conn]*chain.Element // its place in waiting; nil: in a request
	waiting chain.List                  // of net.Conn, the longest first
	told    time.Time
}

func newCrowd(log *slog.Logger) *crowd {
	return &crowd{most: max(openFiles()/crowdShare, 1), log: log, open: map[net.Conn]*chain.Element{}}
}

// openFiles is how many files this process may open.
func openFiles() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return int(min(limit.Cur, 1<<20))
}

// state is for http.Server.ConnState.
func (c *crowd) state(conn net.Conn, now http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	place, known := c.open[conn]
	if !known && now != http.StateNew {
		return // it was closed below, and net/http comes to see that
	}
	if place != nil {
		c.waiting.Remove(place)
	}
	switch now {
	case http.StateNew, http.StateIdle:
		c.open[conn] = c.waiting.PushBack(conn)
	case http.StateActive:
		c.open[conn] = nil
	case http.StateHijacked, http.StateClosed:
		delete(c.open, conn)
	}
	if len(c.open) <= c.most || c.waiting.Len() == 0 {
		return
	}
	oldest := c.waiting.Remove(c.waiting.Front()).(net.Conn) //nolint:errcheck // nothing else is in it
	delete(c.open, oldest)
	oldest.Close() //nolint:errcheck // nobody is there to be told
	if time.Since(c.told) > crowdQuiet {
		c.told = time.Now()
		c.log.Warn("too many connections: those that wait longest for a request are closed", "most", c.most)
	}
}
