// Package spool keeps the output of background commands in memory, bounded per stream and in total,
// and addressed by absolute offsets.
//
// When a limit is reached, the oldest bytes are dropped; the offsets tell a slow reader the exact
// gap. A stream that must not lose bytes makes its writer wait instead. Memory is allocated as
// output arrives. The package starts no goroutine.
package spool

import (
	"context"
	"errors"
	"sync"
)

// ErrFreed is returned for a stream that was freed.
var ErrFreed = errors.New("output has been dropped")

const (
	firstChunk = 4 << 10  // the most that an idle stream holds
	maxChunk   = 64 << 10 // the most that is dropped at once
	keepFree   = 16       // full-size chunks kept for reuse
)

// Set is a group of streams that share one total. It is safe for concurrent use.
type Set struct {
	total int64

	mu      sync.Mutex
	room    sync.Cond // signalled when a writer may continue
	used    int64     // capacity of all chunks
	streams map[*Stream]struct{}
	free    [][]byte
}

// New returns a set that keeps at most total bytes, or slightly more if each stream needs its first
// chunk.
func New(total int64) *Set {
	s := &Set{total: total, streams: make(map[*Stream]struct{})}
	s.room.L = &s.mu
	return s
}

// Used returns the memory that the streams hold, in bytes.
func (s *Set) Used() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}

// Stream is the output of one command on one descriptor. It has one writer, which calls Space,
// Commit and Close, and any number of readers.
type Stream struct {
	set   *Set
	limit int64
	wait  bool

	// The fields below are guarded by set.mu.
	chunks  []chunk
	held    int64 // capacity of chunks
	end     int64
	acked   int64
	forced  bool
	eof     bool
	freed   bool
	changed chan struct{} // closed at the next change; nil while no reader waits
}

type chunk struct {
	off int64
	n   int
	buf []byte
}

// Stream returns a new stream that keeps at most limit bytes. With wait no byte is lost: Space
// waits until readers have acknowledged enough.
func (s *Set) Stream(limit int64, wait bool) *Stream {
	st := &Stream{set: s, limit: limit, wait: wait}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.streams[st] = struct{}{}
	return st
}

// Space returns a non-empty buffer for the next bytes. It may wait, see Force. It returns nil if
// the stream was freed. Commit makes the written bytes visible.
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

// nextSize returns the size of the next chunk.
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

// reserve drops what may be dropped for a new chunk of size bytes, and reports whether it fits. A
// stream without chunks always gets its first one.
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

// canDrop reports whether the stream has more than keep chunks and the oldest may be dropped.
func (st *Stream) droppable(keep int) bool {
	if len(st.chunks) <= keep {
		return false
	}
	c := &st.chunks[0]
	return !st.wait || c.off+int64(c.n) <= st.acked
}

// largestDroppable returns the stream that holds the most memory and can drop a chunk, or nil. The
// last chunk of another stream is being written to and is kept.
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

// Commit makes the first n bytes of the last Space visible to readers.
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

// Force makes Space stop waiting and exceed the limits if needed. It is for the bounded rest in the
// pipe of an ended command.
func (st *Stream) Force() {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	st.forced = true
	st.set.room.Broadcast()
}

// Close ends the stream. Its content stays readable.
func (st *Stream) Close() {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	st.eof = true
	st.signal()
}

// Free drops the stream and all its content. It is idempotent.
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

// Ack records that everything before offset has been read.
func (st *Stream) Ack(offset int64) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	if offset > st.acked {
		st.acked = min(offset, st.end)
		st.set.room.Broadcast()
	}
}

// Span returns the offsets of the first byte held and of the end. If eof is set, end is the
// stream's length.
func (st *Stream) Span() (start, end int64, eof bool) {
	st.set.mu.Lock()
	defer st.set.mu.Unlock()
	return st.start(), st.end, st.eof
}

// Limit returns the maximum number of bytes that the stream keeps.
func (st *Stream) Limit() int64 { return st.limit }

func (st *Stream) start() int64 {
	if len(st.chunks) == 0 {
		return st.end
	}
	return st.chunks[0].off
}

// ReadAt copies bytes from offset on, or from the oldest byte held if that is later, and returns
// the offset it started at.
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

// Wait returns nil once there is a byte at offset or the stream has ended. It returns the cause of
// ctx when ctx ends, and ErrFreed if the stream was freed.
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
