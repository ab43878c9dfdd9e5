package pool

import "slices"

// queue serves waiters by turns of their callers, and those of one caller in
// the order they came: a caller with a thousand waiters does not starve one
// with a single one. The pool's lock guards it.
type queue[T any] struct {
	turns []*line[T] // the first is next
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
		q.turns[i].waiters = append(q.turns[i].waiters, w)
		return w
	}
	q.turns = append(q.turns, &line[T]{caller: caller, waiters: []*waiter[T]{w}})
	return w
}

// pop returns who is next, or nil.
func (q *queue[T]) pop() *waiter[T] {
	if q.n == 0 {
		return nil
	}
	l := q.turns[0]
	w := l.waiters[0]
	l.waiters = l.waiters[1:]
	q.turns = q.turns[1:]
	if len(l.waiters) > 0 {
		q.turns = append(q.turns, l)
	}
	q.n--
	return w
}

// remove takes out a waiter that gave up; false if it was served.
func (q *queue[T]) remove(w *waiter[T]) bool {
	i := q.find(w.caller)
	if i < 0 {
		return false
	}
	l := q.turns[i]
	j := slices.Index(l.waiters, w)
	if j < 0 {
		return false
	}
	l.waiters = slices.Delete(l.waiters, j, j+1)
	if len(l.waiters) == 0 {
		q.turns = slices.Delete(q.turns, i, i+1)
	}
	q.n--
	return true
}

func (q *queue[T]) find(caller string) int {
	return slices.IndexFunc(q.turns, func(l *line[T]) bool { return l.caller == caller })
}
