// Package spool keeps the output of background commands in memory, bounded per
// stream and in total, addressed by absolute offsets.
//
// What no longer fits drops the oldest bytes; the offsets tell a reader that
// fell behind the exact gap. A stream that must not lose any (Wait) makes its
// writer wait instead. It knows nothing of commands or of the wire, starts no
// goroutine, and allocates as output arrives, never ahead of it.
package spool

import (
	"context"
	"errors"
	"sync"
)

// ErrFreed says that the stream was given up.
var ErrFreed = errors.New("output has been dropped")

const (
	firstChunk = 4 << 10  // an idle stream holds no more than this
	maxChunk   = 64 << 10 // what is dropped at once, at most
	keepFree   = 16       // full-size chunks kept for the next stream
)

// Set is all streams that share one total. Safe for concurrent use.
type Set struct {
	total int64

	mu      sync.Mutex
	room    sync.Cond // broadcast when a writer may go on
	used    int64     // capacity of all chunks
	streams map[*Stream]struct{}
	free    [][]byte
}

// New makes a set that keeps at most total bytes, and a little more where every
// stream needs some.
func New(total int64) *Set {
	s := &Set{total: total, streams: make(map[*Stream]struct{})}
	s.room.L = &s.mu
	return s
}

// Used is how much memory the streams hold, in bytes.
func (s *Set) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Stream is the output of one command on one descriptor. It has one writer,
// which calls Space, Commit and Close, and any number of readers.
type Stream struct {
	set   *Set
	limit int64
	wait  bool

	// Below: guarded by set.mu.
	chunks  []chunk
	held    int64 // capacity of chunks
	end     int64
	acked   int64
	forced  bool
	eof     bool
	freed   bool
	changed chan struct{} // closed at the next change, nil while nobody waits
}

type chunk struct {
	off int64
	n   int
	buf []byte
}

// Stream makes a stream that keeps at most limit bytes. With wait none is lost:
// Space waits until readers have acknowledged enough.
func (s *Set) Stream(limit int64, wait bool) *Stream {
	st := &Stream{set: s, limit: limit, wait: wait}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = struct{}{}
	return st
}

// Space returns where the next bytes go, never nothing. It may wait, see Force;
// nil means that the stream was freed. What was written there counts with
// Commit.
func (st *Stream) Space() []byte {
	s := st.set
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		if st.freed {
			return nil
		}
		if n := len(st.chunks); n > 0 {
			if last := &st.chunks[n-1]; last.n < len(last.buf) {
				return last.buf[last.n:]
			}
		}
		if size := st.next(); st.makeRoom(size) {
			st.add(size)
			continue
		}
		s.room.Wait()
	}
}

// next is the size of the chunk that comes next.
func (st *Stream) next() int64 {
	size := int64(firstChunk)
	if n := len(st.chunks); n > 0 {
		size = min(4*int64(len(st.chunks[n-1].buf)), maxChunk)
	} else if st.end > 0 {
		size = maxChunk
	}
	for size > firstChunk && (size > st.limit/4 || st.wait && st.held+size > st.limit) {
		size /= 2
	}
	return size
}

// makeRoom drops what may be dropped for a new chunk and says whether there is
// room now. A stream with nothing always gets its first chunk.
func (st *Stream) makeRoom(size int64) bool {
	if st.wait && st.forced {
		return true
	}
	for st.held+size > st.limit && st.droppable(0) {
		st.drop()
	}
	if st.wait && st.held > 0 && st.held+size > st.limit {
		return false
	}
	s := st.set
	for s.used+size > s.total {
		victim := s.largest(st)
		if victim == nil {
			return len(st.chunks) == 0
		}
		victim.drop()
	}
	return true
}

// droppable says whether more than keep chunks are there and the oldest may go.
func (st *Stream) droppable(keep int) bool {
	if len(st.chunks) <= keep {
		return false
	}
	c := &st.chunks[0]
	return !st.wait || c.off+int64(c.n) <= st.acked
}

// largest finds the stream that has most of what may be dropped. The last chunk
// of another one is being written and stays.
func (s *Set) largest(self *Stream) *Stream {
	var found *Stream
	for st := range s.streams {
		keep := 1
		if st == self {
			keep = 0
		}
		if st.droppable(keep) && (found == nil || st.held > found.held) {
			found = st
		}
	}
	return found
}

func (st *Stream) drop() {
	c := st.chunks[0]
	st.chunks[0] = chunk{}
	st.chunks = st.chunks[1:]
	st.release(c)
}

func (st *Stream) release(c chunk) {
	s, size := st.set, int64(len(c.buf))
	st.held -= size
	s.used -= size
	if size == maxChunk && len(s.free) < keepFree && s.used > 0 {
		s.free = append(s.free, c.buf)
	}
	if s.used == 0 {
		s.free = nil
	}
	s.room.Broadcast()
}

func (st *Stream) add(size int64) {
	s := st.set
	var buf []byte
	if n := len(s.free); n > 0 && size == maxChunk {
		buf, s.free = s.free[n-1], s.free[:n-1]
	} else {
		buf = make([]byte, size)
	}
	st.chunks = append(st.chunks, chunk{off: st.end, buf: buf})
	st.held += size
	s.used += size
}

// Commit says that n bytes were written to what Space returned last.
func (st *Stream) Commit(n int) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	if st.freed || n <= 0 {
		return
	}
	st.chunks[len(st.chunks)-1].n += n
	st.end += int64(n)
	st.signal()
}

func (st *Stream) signal() {
	if st.changed != nil {
		close(st.changed)
		st.changed = nil
	}
}

// Force makes Space stop waiting, and go over the limits where it would have
// to: for the bounded rest that the pipe of an ended command holds.
func (st *Stream) Force() {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	st.forced = true
	st.set.room.Broadcast()
}

// Close ends the stream; what it holds stays readable.
func (st *Stream) Close() {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	st.eof = true
	st.signal()
}

// Free gives up the stream and all it holds. Idempotent.
func (st *Stream) Free() {
	s := st.set
	s.mu.Lock()
	defer s.mu.Unlock()
	st.freed, st.eof = true, true
	for len(st.chunks) > 0 {
		st.drop()
	}
	delete(s.streams, st)
	st.signal()
	s.room.Broadcast()
}

// Ack says that everything before offset has been read.
func (st *Stream) Ack(offset int64) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	if offset > st.acked {
		st.acked = min(offset, st.end)
		st.set.room.Broadcast()
	}
}

// Span is what is held: the bytes from start to end. With eof end is the
// stream's length.
func (st *Stream) Span() (start, end int64, eof bool) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	return st.start(), st.end, st.eof
}

// Limit is how many bytes the stream keeps.
func (st *Stream) Limit() int64 { return st.limit }

func (st *Stream) start() int64 {
	if len(st.chunks) == 0 {
		return st.end
	}
	return st.chunks[0].off
}

// ReadAt copies what is held from offset on, or from the oldest byte held if
// that is later; at says which it was.
func (st *Stream) ReadAt(p []byte, offset int64) (n int, at int64) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	at = max(offset, st.start())
	for i := range st.chunks {
		c := &st.chunks[i]
		from := at + int64(n) - c.off
		if from >= int64(c.n) {
			continue
		}
		if from < 0 || n == len(p) {
			break
		}
		n += copy(p[n:], c.buf[from:c.n])
	}
	return n, at
}

// Wait returns when there is a byte at offset, the stream has ended, or ctx
// has, whose cause it returns then.
func (st *Stream) Wait(ctx context.Context, offset int64) error {
	for {
		st.set.mu.Lock()
		freed, ready := st.freed, st.end > offset || st.eof
		if !ready && st.changed == nil {
			st.changed = make(chan struct{})
		}
		changed := st.changed
		st.set.mu.Unlock()
		switch {
		case freed:
			return ErrFreed
		case ready:
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
