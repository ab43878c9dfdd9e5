package guestconn

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// bridgedGuest is a guest whose bridges are goroutines of this process.
type bridgedGuest struct {
	t      *testing.T
	path   string
	seen   atomic.Int64
	end    context.CancelFunc
	ended  chan struct{}
	all    sync.WaitGroup
	budget func() int // how many bytes a connection carries in one direction; nil: no limit

	mu   sync.Mutex
	open []net.Conn // the bridges' ends
}

func newBridgedGuest(t *testing.T, serve func(net.Conn)) *bridgedGuest {
	t.Helper()
	g := &bridgedGuest{t: t, path: socketPath(t), ended: make(chan struct{})}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: g.path, Net: "unix"})
	must(t, err)
	ctx, end := context.WithCancel(t.Context())
	g.end = end
	go func() {
		defer close(g.ended)
		ServeBridges(ctx, ln, func(c net.Conn) bool { serve(c); return false }, func() { g.seen.Add(1) })
	}()
	t.Cleanup(func() {
		g.cut()
		end()
		<-g.ended
		g.all.Wait()
	})
	return g
}

// dial starts a bridge.
func (g *bridgedGuest) dial(context.Context) (io.ReadWriteCloser, error) {
	conn, err := net.Dial("unix", g.path)
	if err != nil {
		return nil, err
	}
	near, far := net.Pipe()
	g.mu.Lock()
	g.open = append(g.open, far)
	budget := g.budget
	g.mu.Unlock()
	stdin, stdout := io.Reader(far), io.Writer(far)
	if budget != nil {
		stdin, stdout = io.LimitReader(far, int64(budget())), &cutter{far, budget()}
	}
	g.all.Go(func() {
		_ = Pipe(stdin, stdout, conn)
		_ = far.Close()
	})
	return near, nil
}

// cut breaks all connections.
func (g *bridgedGuest) cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range g.open {
		_ = c.Close()
	}
	g.open = nil
}

func (g *bridgedGuest) mux(d Dialer) *Mux {
	g.t.Helper()
	if d.Dial == nil {
		d.Dial = g.dial
	}
	m, err := DialMux(soon(g.t), g.t.Context(), d)
	must(g.t, err)
	g.t.Cleanup(func() { _ = m.Close() })
	return m
}

// answerAll answers everything that it read, and the end.
func answerAll(c net.Conn) {
	all, err := io.ReadAll(c)
	if err != nil {
		return
	}
	_, _ = c.Write(all)
	_, _ = io.WriteString(c, "the end")
}

// exchangeAll sends text, ends that direction, and checks the answer.
func exchangeAll(t *testing.T, m *Mux, said []byte) {
	t.Helper()
	c, err := m.Open(soon(t))
	if err != nil {
		t.Error(err)
		return
	}
	defer c.Close()
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() {
		_, _ = c.Write(said)
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	})
	must(t, c.SetDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, append(bytes.Clone(said), "the end"...)) {
		t.Errorf("read %d bytes, %v; want the %d bytes that were sent and the end", len(got), err, len(said))
	}
}

// Streams under way survive cuts of their connection after any number of bytes: none of their bytes
// is lost or repeated, and the ends of their directions arrive.
func TestStreamsSurviveCuts(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run("", func(t *testing.T) {
			t.Parallel()
			g := newBridgedGuest(t, answerAll)
			random := rand.New(rand.NewPCG(seed, 0))
			var mu sync.Mutex
			resumed := 0
			m := g.mux(Dialer{Resumed: func(error) {
				mu.Lock()
				defer mu.Unlock()
				resumed++
			}})
			g.mu.Lock()
			g.budget = func() int { return random.IntN(500_000) }
			g.mu.Unlock()
			g.cut()
			var all sync.WaitGroup
			for i := range 4 {
				all.Go(func() { exchangeAll(t, m, text(100_000*i+1)) })
			}
			all.Wait()
			mu.Lock()
			defer mu.Unlock()
			if resumed < 1 {
				t.Error("the connection was resumed 0 times, want at least once")
			}
		})
	}
}

// A request that begins without a connection waits for the next one.
func TestRequestWaitsForConnection(t *testing.T) {
	t.Parallel()
	g := newBridgedGuest(t, echo)
	var refuse atomic.Bool
	tried := make(chan struct{}, 100)
	m := g.mux(Dialer{Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
		if refuse.Load() {
			tried <- struct{}{}
			return nil, errors.New("refused")
		}
		return g.dial(ctx)
	}})
	refuse.Store(true)
	g.cut()
	<-tried
	done := make(chan error, 1)
	go func() { done <- roundTrip(soon(t), m, 1000) }()
	<-tried
	refuse.Store(false)
	must(t, <-done)
	if g.seen.Load() == 0 {
		t.Error("the host was reported as present 0 times, want at least once")
	}
}

// A guest that was replaced does not know the streams: they are lost at once.
func TestStreamsOfReplacedGuestAreLost(t *testing.T) {
	t.Parallel()
	g, other := newBridgedGuest(t, echo), newBridgedGuest(t, echo)
	var replaced atomic.Bool
	m := g.mux(Dialer{Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
		if replaced.Load() {
			return other.dial(ctx)
		}
		return g.dial(ctx)
	}})
	c, err := m.Open(soon(t))
	must(t, err)
	defer c.Close()
	must(t, exchange(c, 100))
	replaced.Store(true)
	began := time.Now()
	g.cut()
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrLost) || !errors.Is(err, ErrGone) {
		t.Errorf("read: %v, want %v because of %v", err, ErrLost, ErrGone)
	}
	if took := time.Since(began); took > ResumeTime/2 {
		t.Errorf("the loss was reported after %s, want at most %s", took, ResumeTime/2)
	}
}

// A new line ends an earlier one without a connection, and its streams in the guest.
func TestNewLineEndsUnconnectedOne(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	g := newBridgedGuest(t, func(c net.Conn) {
		b := make([]byte, 1)
		if _, err := io.ReadFull(c, b); err == nil && b[0] != 'w' {
			_, _ = c.Write(b)
			echo(c)
			return
		}
		_, err := c.Read(b)
		ended <- err
	})
	down := make(chan struct{}, 100)
	var refuse atomic.Bool
	first := g.mux(Dialer{Dial: func(ctx context.Context) (io.ReadWriteCloser, error) {
		if refuse.Load() {
			down <- struct{}{}
			return nil, errors.New("refused")
		}
		return g.dial(ctx)
	}})
	c, err := first.Open(soon(t))
	must(t, err)
	defer c.Close()
	_, err = c.Write([]byte("w"))
	must(t, err)
	must(t, roundTrip(soon(t), first, 1)) // the guest has the byte
	refuse.Store(true)
	g.cut()
	<-down
	must(t, roundTrip(soon(t), g.mux(Dialer{}), 1))
	select {
	case err := <-ended:
		if err == nil {
			t.Error("read of the first line's stream succeeded, want an error")
		}
	case <-time.After(patience):
		t.Fatalf("the stream of the first line is still open after %s, want it ended", patience)
	}
	refuse.Store(false)
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrGone) {
		t.Errorf("read of the first line's stream: %v, want %v", err, ErrGone)
	}
}

// A new line leaves an earlier one alone that is connected, until that loses its connection.
func TestNewLineLeavesConnectedOneAlone(t *testing.T) {
	t.Parallel()
	g := newBridgedGuest(t, echo)
	c, err := g.mux(Dialer{}).Open(soon(t))
	must(t, err)
	defer c.Close()
	must(t, exchange(c, 10))
	second := g.mux(Dialer{})
	must(t, roundTrip(soon(t), second, 10))
	must(t, exchange(c, 10))
	g.cut()
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, ErrGone) {
		t.Errorf("read of the first line's stream after the cut: %v, want %v", err, ErrGone)
	}
	must(t, roundTrip(soon(t), second, 10))
}

// A host that was replaced cannot begin a line, and the line of its successor is still resumed.
func TestReplacedHostIsRefused(t *testing.T) {
	t.Parallel()
	g := newBridgedGuest(t, echo)
	c, err := g.mux(Dialer{Epoch: 2}).Open(soon(t))
	must(t, err)
	defer c.Close()
	must(t, exchange(c, 10))
	if _, err := DialMux(soon(t), t.Context(), Dialer{Dial: g.dial, Epoch: 1}); !errors.Is(err, ErrFenced) {
		t.Errorf("DialMux of the older host = %v, want %v", err, ErrFenced)
	}
	g.cut()
	must(t, exchange(c, 10))
}

// The number of lines is bounded: the oldest goes.
func TestLinesAreBounded(t *testing.T) {
	t.Parallel()
	g := newBridgedGuest(t, echo)
	muxes := make([]*Mux, 0, maxLines+1)
	for range maxLines + 1 {
		m := g.mux(Dialer{})
		must(t, roundTrip(soon(t), m, 1))
		muxes = append(muxes, m)
	}
	select {
	case <-muxes[0].Done():
	case <-time.After(patience):
		t.Fatalf("the oldest line is still up after %s, want it ended", patience)
	}
	for _, m := range muxes[1:] {
		must(t, roundTrip(soon(t), m, 1))
	}
}

// say opens a bridge by hand, and returns how the guest answers a greeting.
func (g *bridgedGuest) say(b []byte) []byte {
	g.t.Helper()
	conn, err := net.Dial("unix", g.path)
	must(g.t, err)
	g.t.Cleanup(func() { _ = conn.Close() })
	_, err = conn.Write(b)
	must(g.t, err)
	must(g.t, conn.SetReadDeadline(time.Now().Add(patience)))
	answer := make([]byte, answerSize)
	n, _ := io.ReadFull(conn, answer)
	return answer[:n]
}

// Greetings of connections that the host has given up may arrive late. They change nothing.
func TestDelayedGreetingsAreIgnored(t *testing.T) {
	t.Parallel()
	g := newBridgedGuest(t, echo)
	h := newHostLine(Dialer{Dial: g.dial})
	a, err := h.connect(soon(t))
	must(t, err)
	m, err := newMux(h.line)
	must(t, err)
	m.wg.Go(func() { h.keep(t.Context(), a) })
	defer m.Close()
	c, err := m.Open(soon(t))
	must(t, err)
	defer c.Close()
	must(t, exchange(c, 1000))
	if answer := g.say(greeting{id: h.id, attempt: 1}.encode()); len(answer) > 0 {
		t.Errorf("the answer to a delayed greeting of the line is %q, want none", answer)
	}
	other := lineID{1}
	if answer := g.say(greeting{id: other, fresh: true, attempt: 1}.encode()); len(answer) != answerSize {
		t.Errorf("the answer to a fresh greeting is %q, want %d bytes", answer, answerSize)
	}
	if answer := g.say(greeting{id: other, attempt: 2}.encode()); !bytes.Equal(answer, encodeAnswer(answerUnknown, 0)) {
		t.Errorf("the answer to a line that was not confirmed is %q, want %q", answer,
			encodeAnswer(answerUnknown, 0))
	}
	must(t, exchange(c, 1000))
	g.cut()
	must(t, exchange(c, 1000))
}

func TestOtherVersionIsNamed(t *testing.T) {
	t.Parallel()
	answer := encodeAnswer(answerReady, 0)
	answer[len(lineMagic)+1]++
	for name, c := range map[string]struct {
		said string
		want string
	}{
		"other version": {string(answer), "the other side has line version 2, this one has 1"},
		"no guest":      {"OCI runtime exec failed: exec: no such file", `invalid greeting "OCI runt"`},
		"short":         {"sh: bad", `invalid answer "sh: bad"`},
		"nothing":       {"", "no answer"},
		"other code":    {string(encodeAnswer(9, 0)), "code 9"},
	} {
		dial := func(context.Context) (io.ReadWriteCloser, error) {
			host, guest := net.Pipe()
			go func() {
				_, _ = io.ReadFull(guest, make([]byte, greetingSize))
				_, _ = io.WriteString(guest, c.said)
				_ = guest.Close()
			}()
			return host, nil
		}
		_, err := DialMux(soon(t), t.Context(), Dialer{Dial: dial})
		if err == nil || !strings.Contains(err.Error(), c.want) ||
			errors.Is(err, ErrVersion) != (name == "other version") {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if err := bridgeEnded("guest: usage: guest init | guest bridge\n"); !errors.Is(err, ErrVersion) {
		t.Errorf("usage of an earlier build: %v, want %v", err, ErrVersion)
	}
	if err := bridgeEnded("guest: connect to the guest: x"); errors.Is(err, ErrVersion) ||
		!strings.Contains(err.Error(), "connect to the guest: x") {
		t.Errorf("a bridge that failed: %v, want what it said", err)
	}
}

// A guest of another version answers with its own, so that the host can name both.
func TestGuestNamesItsVersion(t *testing.T) {
	t.Parallel()
	g := newBridgedGuest(t, echo)
	b := greeting{fresh: true}.encode()
	b[len(lineMagic)+1]++
	if answer := g.say(b); !bytes.Equal(answer, encodeAnswer(answerVersion, 0)) {
		t.Errorf("the answer to another version is %q, want %q", answer, encodeAnswer(answerVersion, 0))
	}
	b[0]++
	if answer := g.say(b); len(answer) > 0 {
		t.Errorf("the answer to garbage is %q, want none", answer)
	}
}

// Only the guest's own user may connect, whatever it knows.
func TestBridgeOfOtherUserIsRefused(t *testing.T) {
	t.Parallel()
	near, far, err := socketPair()
	must(t, err)
	defer near.Close()
	s := &lineServer{uid: uint32(os.Geteuid()) + 1}
	go s.greet(t.Context(), far.(*net.UnixConn))
	_, _ = near.Write(greeting{fresh: true, attempt: 1}.encode())
	if b, err := io.ReadAll(near); len(b) > 0 {
		t.Errorf("answer %q, %v; want the end", b, err)
	}
}

// emptyTimerPool is for tests with yamux in a bubble, which must not be parallel. yamux keeps its
// timers in a pool, and those of a bubble must not be used outside of it. Two collections empty it.
func emptyTimerPool() {
	runtime.GC()
	runtime.GC()
}

// A line without a connection is given up.
func TestAbandonedLineEnds(t *testing.T) {
	defer emptyTimerPool()
	synctest.Test(t, func(t *testing.T) {
		s := new(lineServer)
		s.mu.Lock()
		l := s.begin(lineID{1})
		s.mu.Unlock()
		began := time.Now()
		if _, err := l.line.Write(make([]byte, 2*lineWindow)); !errors.Is(err, errAbandoned) {
			t.Errorf("write: %v, want %v", err, errAbandoned)
		}
		if took := time.Since(began); took != abandoned {
			t.Errorf("given up after %s, want %s", took, abandoned)
		}
		s.wg.Wait()
		if len(s.lines) > 0 {
			t.Error("the abandoned line is still listed, want it removed")
		}
	})
}

// A guest that ends sends the answers under way.
func TestEndOfGuestDeliversAnswers(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan struct{}), make(chan struct{})
	g := newBridgedGuest(t, func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		close(asked)
		<-answer
		_, _ = c.Write(text(100_000))
	})
	m := g.mux(Dialer{})
	c, err := m.Open(soon(t))
	must(t, err)
	_, err = c.Write([]byte("x"))
	must(t, err)
	<-asked
	g.end()
	close(answer)
	if b, err := io.ReadAll(c); err != nil || len(b) != 100_000 {
		t.Errorf("read %d bytes, %v; want the 100000 bytes of the answer", len(b), err)
	}
	must(t, c.Close())
	<-g.ended
	select {
	case <-m.Done():
	case <-time.After(patience):
		t.Fatalf("the mux is still up after %s, want it ended", patience)
	}
}

// A bridge ends when its host sends nothing, although its connection stays open.
func TestIdleBridgeEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		host, stdio := net.Pipe()
		near, far := net.Pipe()
		began := time.Now()
		if err := Pipe(stdio, stdio, near); !errors.Is(err, errIdle) || time.Since(began) != idle {
			t.Errorf("the bridge ended with %v after %s, want %v after %s", err, time.Since(began), errIdle,
				idle)
		}
		_, _ = host.Close(), far.Close()
	})
}
