package scheduler

import (
	"container/list"
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/sandbox-orchestrator/orchestrator/internal/usererror"
)

// hostCapacity limits the number and total memory of all sandboxes. A sandbox reserves its part
// before it is created and releases it when it is removed. Requests that a caller waits for come
// before requests that fill a pool. Among callers, the one that was served the longest ago comes
// first, then the order of arrival. A smaller request never overtakes the next one.
type hostCapacity struct {
	count  int
	memory int64
	// starvedCh receives when a request cannot be met. Its capacity is 1.
	starvedCh chan struct{}

	mu      sync.Mutex
	used    int
	bytes   int64
	waiting list.List // of *capacityRequest
}

func newHostCapacity(count int, memory int64) *hostCapacity {
	return &hostCapacity{count: count, memory: memory, starvedCh: make(chan struct{}, 1)}
}

// poolDemand tells hostCapacity how many callers wait on a pool.
type poolDemand struct {
	// nextWaiter reports whether a caller still waits after more further sandboxes, and when that
	// caller was last served; see pool.Pool.Waiting.
	nextWaiter func(more int) (uint64, bool)
	// creating counts admitted sandboxes that do not exist yet. hostCapacity.mu guards it.
	creating int
}

type capacityRequest struct {
	memory int64
	from   *poolDemand
	ready  chan struct{}
}

// reserve waits until there is capacity or ctx ends. A sandbox that exceeds the total memory is
// refused at once. On success the caller must call created when the sandbox exists or its creation
// has failed.
func (b *hostCapacity) reserve(ctx context.Context, memory int64, from *poolDemand) error {
	if memory > b.memory {
		return usererror.Errorf(
			errdefs.ErrFailedPrecondition,
			"a sandbox of %d bytes of memory does not fit into admission.max_memory of %d",
			memory,
			b.memory,
		)
	}
	s := &capacityRequest{memory: memory, from: from, ready: make(chan struct{})}
	b.mu.Lock()
	e := b.waiting.PushBack(s)
	b.admitWaiting()
	b.mu.Unlock()
	select {
	case <-s.ready:
		return nil
	default:
	}
	b.notifyStarved()
	select {
	case <-s.ready:
		return nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-s.ready: // Admitted at the same moment: pass the capacity on.
		from.creating--
		b.adjust(-1, -memory)
	default:
		b.waiting.Remove(e)
	}
	b.admitWaiting()
	return fmt.Errorf("this host has no capacity for another sandbox (%d of %d, %d of %d bytes): %w: %w",
		b.used, b.count, b.bytes, b.memory, errdefs.ErrResourceExhausted, context.Cause(ctx))
}

// created reports that an admitted sandbox exists or that its creation has failed.
func (b *hostCapacity) created(from *poolDemand) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from.creating--
	b.admitWaiting() // the order may have changed
}

func (b *hostCapacity) notifyStarved() {
	select {
	case b.starvedCh <- struct{}{}:
	default:
	}
}

// isStarved reports whether a caller waits for a sandbox that exceeds the free capacity.
func (b *hostCapacity) isStarved() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, wanted := b.next()
	return wanted && !b.fits(e.Value.(*capacityRequest).memory) // nothing else is put in
}

// next returns the request to serve next and reports whether a caller waits for it. The caller
// holds mu. next takes the lock of each pool.
func (b *hostCapacity) next() (best *list.Element, wanted bool) {
	var least uint64
	seen := map[*poolDemand]int{} // counts a pool's requests, which stand for different waiters
	for e := b.waiting.Front(); e != nil; e = e.Next() {
		from := e.Value.(*capacityRequest).from // nothing else is put in
		turn, waits := from.nextWaiter(from.creating + seen[from])
		seen[from]++
		if best == nil || waits && (!wanted || turn < least) {
			best, wanted, least = e, waits, turn
		}
	}
	return best, wanted
}

// forceReserve reserves without a check, for sandboxes that exist after a restart.
func (b *hostCapacity) forceReserve(memory int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.adjust(1, memory)
}

func (b *hostCapacity) release(memory int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.adjust(-1, -memory)
	b.admitWaiting()
}

func (b *hostCapacity) fits(memory int64) bool {
	return b.used < b.count && b.bytes+memory <= b.memory
}

func (b *hostCapacity) adjust(n int, memory int64) {
	b.used += n
	b.bytes += memory
}

func (b *hostCapacity) admitWaiting() {
	for b.waiting.Len() > 0 {
		e, _ := b.next()
		s := e.Value.(*capacityRequest) // nothing else is put in
		if !b.fits(s.memory) {
			return
		}
		b.adjust(1, s.memory)
		s.from.creating++
		b.waiting.Remove(e)
		close(s.ready)
	}
}
