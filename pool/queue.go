package pool

import (
	"slices"
	"sync"
)

// FairOrder remembers when each caller was last served, across all pools that share it. Its methods
// may be called concurrently.
type FairOrder struct {
	mu   sync.Mutex
	n    uint64
	last map[string]uint64
}

// maxTurns bounds the number of remembered callers. An evicted caller counts as never served and
// goes first.
const maxTurns = 4096

// LastServed returns the number of the caller's last turn, 0 if there was none.
func (t *FairOrder) LastServed(caller string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[caller]
}

// served records a turn of a caller.
func (t *FairOrder) served(caller string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.last) >= maxTurns {
		for c, n := range t.last {
			if n < t.n-maxTurns/2 {
				delete(t.last, c)
			}
		}
	}
	if t.last == nil {
		t.last = map[string]uint64{}
	}
	t.n++
	t.last[caller] = t.n
}

// queue serves callers in turn, and the waiters of one caller in order of arrival: a caller with a
// thousand waiters does not starve a caller with one. The pool's lock guards it.
type queue[T any] struct {
	order *FairOrder
	lines []*line[T] // in order of their first waiter
	n     int
}

type line[T any] struct {
	caller  string
	waiters []*waiter[T]
}

type waiter[T any] struct {
	caller string
	ready  chan served[T] // its buffer holds one
}

type served[T any] struct {
	item item[T]
	err  error
}

func (q *queue[T]) len() int { return q.n }

func (q *queue[T]) push(caller string) *waiter[T] {
	w := &waiter[T]{caller: caller, ready: make(chan served[T], 1)}
	q.n++
	if i := q.find(caller); i >= 0 {
		q.lines[i].waiters = append(q.lines[i].waiters, w)
		return w
	}
	q.lines = append(q.lines, &line[T]{caller: caller, waiters: []*waiter[T]{w}})
	return w
}

// pop removes and returns the next waiter, or nil.
func (q *queue[T]) pop() *waiter[T] {
	best := -1
	var least uint64
	for i, l := range q.lines {
		if turn := q.order.LastServed(l.caller); best < 0 || turn < least {
			best, least = i, turn
		}
	}
	if best < 0 {
		return nil
	}
	l := q.lines[best]
	w := l.waiters[0]
	l.waiters = l.waiters[1:]
	if len(l.waiters) == 0 {
		q.lines = slices.Delete(q.lines, best, best+1)
	}
	q.n--
	q.order.served(l.caller)
	return w
}

// turn returns the last turn of the caller who is served after the given number of others. ok is
// false if fewer wait.
func (q *queue[T]) turn(before int) (uint64, bool) {
	if before >= q.n {
		return 0, false
	}
	// Each caller is served once before any caller is served twice.
	order := make([]uint64, 0, len(q.lines))
	for _, l := range q.lines {
		order = append(order, q.order.LastServed(l.caller))
	}
	if before >= len(order) {
		return ^uint64(0), true // after every first turn
	}
	slices.Sort(order)
	return order[before], true
}

// remove takes a waiter that gave up out of the queue. It returns false if the waiter was already
// served.
func (q *queue[T]) remove(w *waiter[T]) bool {
	i := q.find(w.caller)
	if i < 0 {
		return false
	}
	l := q.lines[i]
	j := slices.Index(l.waiters, w)
	if j < 0 {
		return false
	}
	l.waiters = slices.Delete(l.waiters, j, j+1)
	if len(l.waiters) == 0 {
		q.lines = slices.Delete(q.lines, i, i+1)
	}
	q.n--
	return true
}

func (q *queue[T]) find(caller string) int {
	return slices.IndexFunc(q.lines, func(l *line[T]) bool { return l.caller == caller })
}
