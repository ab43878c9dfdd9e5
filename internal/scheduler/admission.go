package scheduler

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
)

// budget is what this host gives to sandboxes, by number and memory. A
// sandbox takes its part before it is created and gives it back when nothing
// is left of it. Those who wait are served in the order they came: a big one
// is not overtaken for ever by small ones.
type budget struct {
	count  int
	memory int64

	mu      sync.Mutex
	used    int
	bytes   int64
	waiting list.List // of *share
}

type share struct {
	memory int64
	ready  chan struct{}
}

// take waits until there is room or ctx ends. What can never fit is refused.
func (b *budget) take(ctx context.Context, memory int64) error {
	if memory > b.memory {
		return fmt.Errorf("a sandbox of %d bytes of memory does not fit into admission.max_memory of %d: %w", memory, b.memory, errdefs.ErrFailedPrecondition)
	}
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.fits(memory) {
		b.add(1, memory)
		b.mu.Unlock()
		return nil
	}
	s := &share{memory: memory, ready: make(chan struct{})}
	e := b.waiting.PushBack(s)
	b.mu.Unlock()
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-s.ready: // it came at the same moment: hand it on
		b.add(-1, -memory)
	default:
		b.waiting.Remove(e)
	}
	b.serve()
	return fmt.Errorf("this host's room for sandboxes is used up (%d of %d, %d of %d bytes): %w: %w",
		b.used, b.count, b.bytes, b.memory, errdefs.ErrResourceExhausted, context.Cause(ctx))
}

// force takes without asking: for sandboxes that are there already after a
// restart.
func (b *budget) force(memory int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(1, memory)
}

func (b *budget) give(memory int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.add(-1, -memory)
	b.serve()
}

func (b *budget) fits(memory int64) bool {
	return b.used < b.count && b.bytes+memory <= b.memory
}

func (b *budget) add(n int, memory int64) {
	b.used += n
	b.bytes += memory
}

func (b *budget) serve() {
	for e := b.waiting.Front(); e != nil; e = b.waiting.Front() {
		s := e.Value.(*share) //nolint:forcetypeassert // nothing else is put in
		if !b.fits(s.memory) {
			return
		}
		b.add(1, s.memory)
		b.waiting.Remove(e)
		close(s.ready)
	}
}
