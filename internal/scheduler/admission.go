package scheduler

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// budget is what this host gives to sandboxes, by number and memory. A
// sandbox takes its part before it is created and gives it back when nothing
// is left of it. What somebody waits for comes before what only fills a pool,
// and among those the caller whose last turn is the longest ago; then it goes
// by the order they came. Who is next is not overtaken by what is smaller.
type budget struct {
	count  int
	memory int64
	// hungry holds one when somebody waits in vain.
	hungry chan struct{}

	mu      sync.Mutex
	used    int
	bytes   int64
	waiting list.List // of *share
}

func newBudget(count int, memory int64) *budget {
	return &budget{count: count, memory: memory, hungry: make(chan struct{}, 1)}
}

// source is a pool as the budget sees it.
type source struct {
	// turn says whether somebody waits for one when so many more than now will
	// have been made, and his last turn; see pool.Pool.Waiting.
	turn func(more int) (uint64, bool)
	// making counts those that have their part and are not there yet. The
	// budget's lock guards it.
	making int
}

type share struct {
	memory int64
	from   *source
	ready  chan struct{}
}

// take waits until there is room or ctx ends. What can never fit is refused.
// Who has taken calls made when the sandbox is there, or never will be.
func (b *budget) take(ctx context.Context, memory int64, from *source) error {
	if memory > b.memory {
		return usererror.Errorf(errdefs.ErrFailedPrecondition, "a sandbox of %d bytes of memory does not fit into admission.max_memory of %d", memory, b.memory)
	}
	s := &share{memory: memory, from: from, ready: make(chan struct{})}
	b.mu.Lock()
	e := b.waiting.PushBack(s)
	b.serve()
	b.mu.Unlock()
	select {
	case <-s.ready:
		return nil
	default:
	}
	b.tell()
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-s.ready: // it came at the same moment: hand it on
		from.making--
		b.add(-1, -memory)
	default:
		b.waiting.Remove(e)
	}
	b.serve()
	return fmt.Errorf("this host's room for sandboxes is used up (%d of %d, %d of %d bytes): %w: %w",
		b.used, b.count, b.bytes, b.memory, errdefs.ErrResourceExhausted, context.Cause(ctx))
}

// made says that one that has its part is there, or never will be.
func (b *budget) made(from *source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from.making--
	b.serve() // another one may be next now
}

func (b *budget) tell() {
	select {
	case b.hungry <- struct{}{}:
	default:
	}
}

// starved says whether somebody waits for a sandbox that there is no room for.
func (b *budget) starved() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, wanted := b.next()
	return wanted && !b.fits(e.Value.(*share).memory) //nolint:forcetypeassert // nothing else is put in
}

// next finds who is to be served next, and says whether somebody waits for it.
// The lock is held; that of a pool is taken.
func (b *budget) next() (best *list.Element, wanted bool) {
	var least uint64
	seen := map[*source]int{} // a pool's creations stand for different waiters
	for e := b.waiting.Front(); e != nil; e = e.Next() {
		from := e.Value.(*share).from //nolint:forcetypeassert // nothing else is put in
		turn, waits := from.turn(from.making + seen[from])
		seen[from]++
		if best == nil || waits && (!wanted || turn < least) {
			best, wanted, least = e, waits, turn
		}
	}
	return best, wanted
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
	for b.waiting.Len() > 0 {
		e, _ := b.next()
		s := e.Value.(*share) //nolint:forcetypeassert // nothing else is put in
		if !b.fits(s.memory) {
			return
		}
		b.add(1, s.memory)
		s.from.making++
		b.waiting.Remove(e)
		close(s.ready)
	}
}
