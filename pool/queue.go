package pool

import (
	"slices"
	"sync"
)

// Turns remembers when callers were served last, over all the pools that have
// it: who waited in one of them was not served by another meanwhile. Its
// methods may be called concurrently.
type Turns struct {
	mu   sync.Mutex
	n    uint64
	last map[string]uint64
}

// maxTurns bounds how many callers are remembered. Who is forgotten is next.
const maxTurns = 4096

// of is the number of a caller's last turn, 0 if there was none.
func (t *Turns) of(caller string) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last[caller]
}

// take counts a turn of a caller.
func (t *Turns) take(caller string) {
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

// queue serves waiters by turns of their callers, and those of one caller in
// the order they came: a caller with a thousand waiters does not starve one
// with a single one. The pool's lock guards it.
type queue[T any] struct {
	turns *Turns
	lines []*line[T] // in the order they began to wait
	n     int
}

type line[T any] struct {
	caller  string
	waiters []*waiter[T]
}

type waiter[T any] struct {
	caller string
	ready  chan served[T] // room for one
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

// pop returns who is next, or nil.
func (q *queue[T]) pop() *waiter[T] {
	best := -1
	var least uint64
	for i, l := range q.lines {
		if turn := q.turns.of(l.caller); best < 0 || turn < least {
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
	q.turns.take(l.caller)
	return w
}

// turn is the last turn of the caller who is served when so many before him
// were; false if nobody is left then.
func (q *queue[T]) turn(before int) (uint64, bool) {
	if before >= q.n {
		return 0, false
	}
	// Each line is served once before any of them is a second time.
	order := make([]uint64, 0, len(q.lines))
	for _, l := range q.lines {
		order = append(order, q.turns.of(l.caller))
	}
	if before >= len(order) {
		return ^uint64(0), true // after all others
	}
	slices.Sort(order)
	return order[before], true
}

// remove takes out a waiter that gave up; false if it was served.
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
