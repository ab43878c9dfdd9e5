package scheduler

import "sync"

// counter collects Recovered from several goroutines.
type counter struct {
	mu  sync.Mutex
	got Recovered
}

func (c *counter) add(f func(*Recovered)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.got)
}

func (c *counter) sum() Recovered {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got
}
