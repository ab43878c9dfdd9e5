package spool

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bound = 30 * time.Second

// octet is the byte that every test puts at an offset.
func octet(off int64) byte { return byte(off*7 + off>>8) }

func write(st *Stream, n int) {
	for n > 0 {
		b := st.Space()
		if b == nil {
			return
		}
		_, end, _ := st.Span()
		m := min(n, len(b))
		for i := range m {
			b[i] = octet(end + int64(i))
		}
		st.Commit(m)
		n -= m
	}
}

func check(t interface{ Fatalf(string, ...any) }, p []byte, at int64) {
	for i, b := range p {
		if b != octet(at+int64(i)) {
			t.Fatalf("byte %d is %d, want %d", at+int64(i), b, octet(at+int64(i)))
		}
	}
}

func TestReaderGetsEveryByteOrTheExactGap(t *testing.T) {
	st := New(1<<20).Stream(100<<10, false)
	write(st, 50<<10)
	buf := make([]byte, 64<<10)
	n, at := st.ReadAt(buf, 10)
	if n != 50<<10-10 || at != 10 {
		t.Fatalf("ReadAt(10) = %d bytes at %d, want %d at 10", n, at, 50<<10-10)
	}
	check(t, buf[:n], at)
	write(st, 1<<20)
	start, end, eof := st.Span()
	if end != 50<<10+1<<20 || end-start > 100<<10 || end-start < 50<<10 || eof {
		t.Fatalf("Span = %d, %d, %v; want end %d, from %d to %d bytes, and no end of file", start, end, eof,
			50<<10+1<<20, 50<<10, 100<<10)
	}
	if n, at = st.ReadAt(buf, 10); at != start || n == 0 {
		t.Fatalf("ReadAt(10) = %d bytes at %d, want some at %d", n, at, start)
	}
	check(t, buf[:n], at)
	if n, at = st.ReadAt(buf, end); n != 0 || at != end {
		t.Errorf("ReadAt(%d), the end, = %d bytes at %d, want 0 at %[1]d", end, n, at)
	}
}

func TestIdleStreamHoldsLittle(t *testing.T) {
	s := New(16 << 20)
	st := s.Stream(1<<20, false)
	if s.Used() != 0 {
		t.Errorf("an empty stream holds %d bytes, want 0", s.Used())
	}
	write(st, 1)
	if s.Used() != firstChunk {
		t.Errorf("a stream of one byte holds %d bytes, want %d", s.Used(), firstChunk)
	}
	st.Free()
	st.Free()
	if s.Used() != 0 || len(s.streams) != 0 {
		t.Errorf("after Free, %d streams hold %d bytes, want none", len(s.streams), s.Used())
	}
	if st.Space() != nil {
		t.Error("Space of a freed stream returned a buffer, want nil")
	}
}

func TestTotalDropsTheOldestOfTheLargest(t *testing.T) {
	s := New(1 << 20)
	large, small := s.Stream(1<<20, false), s.Stream(1<<20, false)
	write(large, 1<<20)
	write(small, 200<<10)
	if start, _, _ := small.Span(); start != 0 {
		t.Errorf("the small stream starts at %d, want 0", start)
	}
	if start, _, _ := large.Span(); start == 0 {
		t.Error("the large stream starts at 0, want its oldest bytes dropped")
	}
	if s.Used() > 1<<20 {
		t.Errorf("%d bytes are held, want at most %d", s.Used(), 1<<20)
	}
}

func TestWaitingStreamLosesNothing(t *testing.T) {
	s := New(16 << 20)
	st := s.Stream(64<<10, true)
	const size = 1 << 20
	done := make(chan struct{})
	go func() { defer close(done); write(st, size); st.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	buf, off := make([]byte, 10_000), int64(0)
	for {
		st.Ack(off)
		if err := st.Wait(ctx, off); err != nil {
			t.Fatal(err)
		}
		n, at := st.ReadAt(buf, off)
		if n == 0 {
			break
		}
		if at != off {
			t.Fatalf("ReadAt(%d) starts at %d, want no gap", off, at)
		}
		check(t, buf[:n], at)
		off += int64(n)
		if s.Used() > 64<<10 {
			t.Fatalf("%d bytes are held, want at most %d", s.Used(), 64<<10)
		}
	}
	<-done
	if off != size {
		t.Errorf("read %d bytes, want %d", off, size)
	}
}

func TestForceAndFreeLetAWaitingWriterGo(t *testing.T) {
	s := New(16 << 20)
	for name, let := range map[string]func(*Stream){"force": (*Stream).Force, "free": (*Stream).Free} {
		st := s.Stream(8<<10, true)
		done := make(chan struct{})
		go func() { defer close(done); write(st, 100<<10) }()
		let(st)
		select {
		case <-done:
		case <-time.After(bound):
			t.Fatalf("%s: the writer still waits after %s, want it released", name, bound)
		}
	}
}

func TestForceKeepsTheLimitOfThoseThatDrop(t *testing.T) {
	st := New(16<<20).Stream(64<<10, false)
	write(st, 60<<10)
	st.Force()
	write(st, 60<<10)
	if start, end, _ := st.Span(); end-start > 64<<10 {
		t.Errorf("%d bytes are held, want at most %d", end-start, 64<<10)
	}
}

func TestWaitersDoNotStarveOthers(t *testing.T) {
	s := New(256 << 10)
	held := s.Stream(256<<10, true)
	write(held, 200<<10)
	other := s.Stream(64<<10, false)
	done := make(chan struct{})
	go func() { defer close(done); write(other, 1<<20) }()
	select {
	case <-done:
	case <-time.After(bound):
		t.Fatalf("the other stream's writer still waits after %s, want it done", bound)
	}
	if start, _, _ := held.Span(); start != 0 {
		t.Errorf("the waiting stream starts at %d, want 0", start)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	st := New(1<<20).Stream(1<<20, false)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := st.Wait(ctx, 0); !errors.Is(err, cause) {
		t.Errorf("Wait with an ended context = %v, want %v", err, cause)
	}
	st.Free()
	if err := st.Wait(t.Context(), 0); !errors.Is(err, ErrFreed) {
		t.Errorf("Wait of a freed stream = %v, want %v", err, ErrFreed)
	}
}

// TestModel checks the spans, bytes and memory of several streams after random writes.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.Int64Range(64<<10, 1<<20).Draw(t, "total")
		s := New(total)
		var streams []*Stream
		for range rapid.IntRange(1, 4).Draw(t, "streams") {
			streams = append(streams, s.Stream(rapid.Int64Range(1, 512<<10).Draw(t, "limit"), false))
		}
		ends := make([]int64, len(streams))
		var buf bytes.Buffer
		buf.Grow(64 << 10)
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			i := rapid.IntRange(0, len(streams)-1).Draw(t, "stream")
			n := rapid.IntRange(0, 100<<10).Draw(t, "bytes")
			write(streams[i], n)
			ends[i] += int64(n)
			var used int64
			for j, st := range streams {
				start, end, _ := st.Span()
				if end != ends[j] || start > end || end-start > max(st.limit, firstChunk) {
					t.Fatalf("stream %d spans %d to %d, want end %d and at most %d bytes", j, start, end,
						ends[j], max(st.limit, firstChunk))
				}
				p := buf.AvailableBuffer()[:64<<10]
				m, at := st.ReadAt(p, start)
				check(t, p[:m], at)
				used += st.held
			}
			if used != s.used || used > total+int64(len(streams))*maxChunk {
				t.Fatalf("the streams hold %d bytes and the set counts %d, want the same and at most %d", used,
					s.used, total+int64(len(streams))*maxChunk)
			}
		}
	})
}
