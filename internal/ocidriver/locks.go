package ocidriver

import (
	"context"
	"sync"
)

// Locks serialises calls about one sandbox. The zero value is ready.
type Locks struct {
	mu   sync.Mutex
	held map[string]chan struct{}
}

// Lock waits until no other call holds id, or ctx ends.
func (l *Locks) Lock(ctx context.Context, id string) (unlock func(), err error) {
	for {
		l.mu.Lock()
		wait, taken := l.held[id]
		if !taken {
			if l.held == nil {
				l.held = map[string]chan struct{}{}
			}
			mine := make(chan struct{})
			l.held[id] = mine
			l.mu.Unlock()
			return func() {
				l.mu.Lock()
				delete(l.held, id)
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
