package relay

import (
	"bytes"
	"fmt"
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

// rest describes what a pool still holds after its copies, or returns "".
func (p *Pool) rest() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken+p.pipes.taken+len(p.pipes.free)+p.pipes.users == 0 {
		return ""
	}
	return fmt.Sprintf("%d buffers and %d pipes are lost, %d pipes kept, %d copies under way", p.taken, p.pipes.taken,
		len(p.pipes.free), p.pipes.users)
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
				t.Fatalf("%d bytes of %d came, %v", len(got), len(want), err)
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
				t.Errorf("after its own end it got %q, %v", got, err)
			}
			if n := <-done; n != [2]int64{int64(len(want)), back} {
				t.Errorf("counted %v", n)
			}
			p.pipes.taken -= c.pipes.taken
			if left := p.rest(); left != "" {
				t.Error(left)
			}
			if n := descriptors(t); n > open {
				t.Errorf("%d descriptors, %d before", n, open)
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
		t.Errorf("a buffer of %d bytes within the bound", n)
	}
	if n := len(taken[manyLarge]); n != small {
		t.Errorf("a buffer of %d bytes beyond it", n)
	}
	for _, b := range taken {
		p.put(b)
	}
	if p.taken != 0 || len(p.free) != keepLarge {
		t.Errorf("%d are taken, %d kept", p.taken, len(p.free))
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
