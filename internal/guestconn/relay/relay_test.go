package relay

import (
	"bytes"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bound = 30 * time.Second

// pair returns a connection over loopback.
func pair(tb testing.TB) (near, far net.Conn) {
	tb.Helper()
	return pairOn(tb, "tcp", "127.0.0.1:0")
}

func pairOn(tb testing.TB, network, address string) (near, far net.Conn) {
	tb.Helper()
	ln, err := net.Listen(network, address)
	if err != nil {
		tb.Fatal(err)
	}
	defer ln.Close()
	if near, err = net.Dial(network, ln.Addr().String()); err != nil {
		tb.Fatal(err)
	}
	if far, err = ln.Accept(); err != nil {
		tb.Fatal(err)
	}
	for _, c := range []net.Conn{near, far} {
		c.SetDeadline(time.Now().Add(bound))
		tb.Cleanup(func() { c.Close() })
	}
	return near, far
}

// whole hides all methods except those of net.Conn.
type whole struct{ net.Conn }

// descriptors returns the number of this process's open descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// wantEmpty fails the test if a pool still holds something after its copies.
func (p *Pool) wantEmpty(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken+p.pipes.taken+len(p.pipes.free)+p.pipes.users != 0 {
		t.Errorf("the pool has %d buffers and %d pipes in use, %d pipes kept, %d copies under way; want none",
			p.taken, p.pipes.taken, len(p.pipes.free), p.pipes.users)
	}
}

func TestJoin(t *testing.T) {
	same := func(c net.Conn) net.Conn { return c }
	for name, c := range map[string]struct {
		hide  func(net.Conn) net.Conn
		pairs func(testing.TB) (a, b net.Conn)
		pipes pipes
	}{
		"half close":         {hide: same, pairs: pair},
		"without half close": {hide: func(c net.Conn) net.Conn { return whole{c} }, pairs: pair},
		"unix sockets":       {hide: same, pairs: unixPair},
		"kernel without it":  {hide: same, pairs: pair, pipes: pipes{never: true}},
		"no pipes left":      {hide: same, pairs: pair, pipes: pipes{taken: manyPipes}},
	} {
		t.Run(name, func(t *testing.T) {
			p := Pool{pipes: c.pipes}
			a, inA := c.pairs(t)
			b, inB := pair(t)
			open := descriptors(t)
			done := make(chan [2]int64, 1)
			go func() { there, back := p.Join(c.hide(inA), c.hide(inB)); done <- [2]int64{there, back} }()
			if _, err := b.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(a, make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
			want := bytes.Repeat([]byte("0123456789"), 300_000)
			go func() { _, _ = a.Write(want); _ = a.(interface{ CloseWrite() error }).CloseWrite() }()
			got, err := io.ReadAll(b)
			if err != nil || !bytes.Equal(got, want) {
				t.Fatalf("read %d bytes, %v; want the %d bytes written and no error", len(got), err, len(want))
			}
			back := int64(5)
			if c.hide(a) == a {
				if _, err := b.Write([]byte("late")); err != nil {
					t.Fatal(err)
				}
				back += 4
				b.Close()
			}
			if got, err := io.ReadAll(a); err != nil || int64(len(got)) != back-5 {
				t.Errorf("read after its own end = %q, %v; want %d bytes and no error", got, err, back-5)
			}
			if n := <-done; n != [2]int64{int64(len(want)), back} {
				t.Errorf("Join = %v, want %v", n, [2]int64{int64(len(want)), back})
			}
			p.pipes.taken -= c.pipes.taken
			p.wantEmpty(t)
			if n := descriptors(t); n > open {
				t.Errorf("%d descriptors, want at most %d as before", n, open)
			}
		})
	}
}

// Streams that are not read hold large buffers up to the limit. Others continue with small ones.
func TestBuffersAreLimited(t *testing.T) {
	var p Pool
	taken := make([][]byte, 0, manyLarge+2)
	for range manyLarge + 2 {
		taken = append(taken, p.get())
	}
	if n := len(taken[manyLarge-1]); n != large {
		t.Errorf("buffer within the bound = %d bytes, want %d", n, large)
	}
	if n := len(taken[manyLarge]); n != small {
		t.Errorf("buffer beyond the bound = %d bytes, want %d", n, small)
	}
	for _, b := range taken {
		p.put(b)
	}
	if p.taken != 0 || len(p.free) != keepLarge {
		t.Errorf("%d buffers in use, %d kept; want 0, %d", p.taken, len(p.free), keepLarge)
	}
}

func BenchmarkJoin(b *testing.B) {
	for name, hide := range map[string]func(net.Conn) net.Conn{"sockets": func(c net.Conn) net.Conn { return c },
		"streams": func(c net.Conn) net.Conn { return whole{c} }} {
		b.Run(name, func(b *testing.B) {
			var p Pool
			from, in := pair(b)
			to, out := pair(b)
			go func() { p.Join(hide(in), hide(out)) }()
			for _, c := range []net.Conn{from, to, in, out} {
				c.SetDeadline(time.Time{})
			}
			piece := make([]byte, 1<<20)
			b.SetBytes(int64(len(piece)))
			go func() {
				for {
					if _, err := from.Write(piece); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, len(piece))
			for b.Loop() {
				if _, err := io.ReadFull(to, buf); err != nil {
					b.Fatal(err)
				}
			}
			from.Close()
		})
	}
}
