// Package namedlock has locks by name, of sandboxes, images, directories or keys.
package namedlock

import (
	"context"
	"sync"
)

// Locks is a set of locks by name. The zero value is ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// Lock waits until no other call holds name, or ctx ends.
func (l *Locks) Lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		wait, taken := l.held[name]
		if !taken {
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			l.held[name] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, name)
				l.mu.Unlock()
				close(mine)
			}, nil
		}
		l.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}
