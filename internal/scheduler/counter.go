package scheduler

import "sync"

// recoveryCounter is a Recovered for concurrent use.
type recoveryCounter struct {
	mu  sync.Mutex
	got Recovered
}

func (c *recoveryCounter) add(f func(*Recovered)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.got)
}

func (c *recoveryCounter) total() Recovered {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got
}
