package relay

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// unixPair returns a connection like those of package guestconn.
func unixPair(tb testing.TB) (near, far net.Conn) {
	tb.Helper()
	return pairOn(tb, "unix", filepath.Join(tb.TempDir(), "s"))
}

// until waits for a condition of a pool's pipes.
func (p *Pool) until(t *testing.T, what string, is func(pipes) bool) {
	t.Helper()
	for end := time.Now().Add(bound); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		now := p.pipes
		p.mu.Unlock()
		if is(now) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("after %s the pipes = %+v, want: %s", bound, now, what)
		}
	}
}

// Large pieces use a pipe, which is held only while it contains bytes. The content of a pipe is
// dropped if the copy fails.
func TestPipesAreHeldOnlyWhileUsed(t *testing.T) {
	var p Pool
	from, in := pair(t)
	out, to := unixPair(t)
	go func() { _, _ = from.Write(make([]byte, 64<<20)) }() // until the stream is closed
	ended := make(chan error, 1)
	go func() { _, err := p.Copy(out, in); ended <- err }()

	other, otherIn := pair(t)
	otherOut, otherTo := unixPair(t)
	otherEnded := make(chan error, 1)
	go func() { _, err := p.Copy(otherOut, otherIn); otherEnded <- err }()
	text := bytes.Repeat([]byte("text"), 100_000)
	whole := func() {
		t.Helper()
		go func() { _, _ = other.Write(text) }()
		got := make([]byte, len(text))
		if _, err := io.ReadFull(otherTo, got); err != nil || !bytes.Equal(got, text) {
			t.Errorf("read: %v; want the %d bytes written and no error", err, len(text))
		}
	}

	p.until(t, "one holds bytes", func(q pipes) bool { return q.taken == 1 })
	whole()
	p.until(t, "the other has none at rest", func(q pipes) bool { return q.taken == 1 && len(q.free) > 0 })
	to.Close()
	if err := <-ended; !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("Copy to a closed stream: %v, want %v or %v", err, syscall.EPIPE, syscall.ECONNRESET)
	}
	whole()
	other.Close()
	if err := <-otherEnded; err != nil {
		t.Error(err)
	}
	p.wantEmpty(t)
}

// Nothing of a refused piece is sent, and each byte is counted once.
func TestCountPrecedesSending(t *testing.T) {
	for name, pairs := range map[string]func(testing.TB) (a, b net.Conn){"by pipes": unixPair,
		"copied": func(tb testing.TB) (a, b net.Conn) {
			tb.Helper()
			a, b = pair(tb)
			return struct{ net.Conn }{a}, b
		}} {
		t.Run(name, func(t *testing.T) {
			const most = 1 << 20
			var p Pool
			from, in := pair(t)
			out, to := pairs(t)
			go func() { _, _ = from.Write(make([]byte, 8*most)); from.Close() }()
			came := make(chan int64, 1)
			go func() { n, _ := io.Copy(io.Discard, to); came <- n }()
			enough, asked, last := errors.New("enough"), 0, 0
			moved, err := p.CopyCounted(out, in, func(n int) error {
				asked, last = asked+n, n
				if asked > most {
					return enough
				}
				return nil
			})
			out.Close()
			if n := <-came; err != enough || n != moved || n != int64(asked-last) || n > most {
				t.Errorf("CopyCounted moved %d bytes, %v, and %d came; want %d, %v, at most %d",
					moved, err, n, asked-last, enough, most)
			}
			p.wantEmpty(t)
		})
	}
}

// If the kernel cannot splice to or from a stream, no byte is lost.
func TestCopyWithoutSplice(t *testing.T) {
	raw := func(f *os.File, err error) (*os.File, syscall.RawConn) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		c, err := f.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		return f, c
	}
	var p Pool
	path := filepath.Join(t.TempDir(), "f")
	file, to := raw(os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)) // splice does not support O_APPEND
	from, in := pair(t)
	want := bytes.Repeat([]byte("x"), 10_000)
	if _, err := from.Write(want); err != nil {
		t.Fatal(err)
	}
	s := newSplice(&p, file, in, func(int) error { return nil })
	s.to = to
	n, err := s.next()
	if got, _ := os.ReadFile(path); err != nil || n == 0 || !bytes.Equal(got, want[:n]) || !p.pipes.never {
		t.Errorf("next = %d, %v, file has %d bytes, never %v; want some bytes, no error, the same bytes, true",
			n, err, len(got), p.pipes.never)
	}

	p.pipes.never = false
	_, s.from = raw(os.Open(t.TempDir()))
	if _, err := s.next(); err != errCopy || !p.pipes.never {
		t.Errorf("next from a directory: %v, never %v; want %v, true", err, p.pipes.never, errCopy)
	}
	p.enter()
	p.leave()
	p.wantEmpty(t)
}
