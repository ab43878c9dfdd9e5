package guestconn

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// cutter is a connection that delivers so many bytes of its writer and then breaks. A negative
// number means no limit.
type cutter struct {
	net.Conn
	room int
}

func (c *cutter) Write(b []byte) (int, error) {
	if c.room < 0 || len(b) <= c.room {
		n, err := c.Conn.Write(b)
		if c.room >= 0 {
			c.room -= n
		}
		return n, err
	}
	n, err := c.Conn.Write(b[:c.room])
	c.room = 0
	return n, errors.Join(err, errors.New("cut"), c.Close())
}

// cuts returns how many bytes the host and the guest can send over a connection.
type cuts func(connection int) (host, guest int)

// cutOnce cuts the first connection after so many bytes of one end.
func cutOnce(host bool, after int) cuts {
	return func(connection int) (int, int) {
		switch {
		case connection > 0:
			return -1, -1
		case host:
			return after, -1
		}
		return -1, after
	}
}

// accept is a guest that continues its line over a connection.
func accept(l *line, conn io.ReadWriteCloser) {
	b := make([]byte, greetingSize)
	if _, err := io.ReadFull(conn, b); err != nil {
		_ = conn.Close()
		return
	}
	g, err := decodeGreeting(b)
	if err == nil && g.fresh {
		_, err = conn.Write(encodeAnswer(answerReady, 0))
		if err == nil {
			err = readConfirm(conn)
		}
	}
	if err == nil {
		_, err = conn.Write(encodeAnswer(answerReady, l.pause(errReplaced)))
	}
	if err != nil {
		_ = conn.Close()
		return
	}
	_, _ = l.attach(conn, bufio.NewReaderSize(conn, readBuffer), g.received)
}

// lines returns both ends of a line whose connections are cut.
func lines(t *testing.T, cut cuts) (host, guest *line) {
	t.Helper()
	guest = newLine()
	connection := 0
	h := newHostLine(Dialer{
		Dial: func(context.Context) (io.ReadWriteCloser, error) {
			a, b := net.Pipe()
			toGuest, toHost := cut(connection)
			connection++
			go accept(guest, &cutter{b, toHost})
			return &cutter{a, toGuest}, nil
		},
	})
	var first *attachment
	for first == nil { // DialMux leaves this to its caller
		first, _ = h.connect(t.Context())
	}
	go h.keep(t.Context(), first)
	return h.line, guest
}

// exchangeLines sends text in both directions, in pieces of different sizes, and checks what
// arrives. It returns what the guest reads after the host has closed the line: errAbandoned if the
// connection was cut at that moment.
func exchangeLines(t *testing.T, host, guest *line, toGuest, toHost []byte) error {
	t.Helper()
	send := func(l *line, text []byte) {
		for size := 1; len(text) > 0; size = size*3%40_000 + 1 {
			n, err := l.Write(text[:min(size, len(text))])
			if err != nil {
				t.Errorf("write: %v, want no error", err)
				return
			}
			text = text[n:]
		}
	}
	go send(host, toGuest)
	go send(guest, toHost)
	got := make(chan []byte, 1)
	receive := func(l *line, want []byte) []byte {
		b := make([]byte, len(want))
		if n, err := io.ReadFull(l, b); err != nil {
			t.Errorf("read %d bytes, want %d: %v", n, len(want), err)
		}
		return b
	}
	go func() { got <- receive(guest, toGuest) }()
	if b := receive(host, toHost); !bytes.Equal(b, toHost) {
		t.Error("the host received other bytes than the guest sent, want the same")
	}
	if b := <-got; !bytes.Equal(b, toGuest) {
		t.Error("the guest received other bytes than the host sent, want the same")
	}
	go host.Close()
	defer time.AfterFunc(abandoned, func() { guest.fail(errAbandoned) }).Stop()
	n, end := guest.Read(make([]byte, 1))
	if n > 0 {
		t.Errorf("read %d bytes after the last one, want 0", n)
	}
	guest.fail(net.ErrClosed)
	guest.wg.Wait()
	<-host.done
	return end
}

func wantEOF(t *testing.T, err error) {
	t.Helper()
	if err != io.EOF {
		t.Errorf("read after the last byte: %v, want %v", err, io.EOF)
	}
}

func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// The line continues wherever the connection is cut: within the greeting, the answer, a header or
// data, at each byte of the first frames.
func TestLineSurvivesCutAtEveryByte(t *testing.T) {
	t.Parallel()
	for _, host := range []bool{true, false} {
		for after := range 1200 {
			synctest.Test(t, func(t *testing.T) {
				h, g := lines(t, cutOnce(host, after))
				wantEOF(t, exchangeLines(t, h, g, text(2000), text(2000)))
			})
			if t.Failed() {
				t.Fatalf("cut after byte %d, host %v: the line failed, want it continued", after, host)
			}
		}
	}
}

func TestLineSurvivesCutOfLargeFrames(t *testing.T) {
	t.Parallel()
	for _, host := range []bool{true, false} {
		for after := 30_000; after < 300_000; after += 1777 {
			synctest.Test(t, func(t *testing.T) {
				h, g := lines(t, cutOnce(host, after))
				wantEOF(t, exchangeLines(t, h, g, text(400_000), text(400_000)))
			})
			if t.Failed() {
				t.Fatalf("cut after byte %d, host %v: the line failed, want it continued", after, host)
			}
		}
	}
}

// Many cuts one after another, also while the line is being resumed.
func TestLineSurvivesManyCuts(t *testing.T) {
	t.Parallel()
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			h, g := lines(t, func(int) (int, int) { return rand.IntN(20_000), rand.IntN(20_000) })
			if err := exchangeLines(t, h, g, text(300_000), text(300_000)); !errors.Is(err, errAbandoned) {
				wantEOF(t, err)
			}
		})
	}
}

// A connection that delivers nothing is replaced, although nothing ends it.
func TestSilentConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dropped := 0
		h, g := lines(t, func(connection int) (int, int) { return -1, -1 })
		synctest.Wait()
		g.mu.Lock() // the guest's writes go nowhere from here on
		g.at.rwc.(*cutter).Conn = &blackHole{Conn: g.at.rwc.(*cutter).Conn, dropped: &dropped}
		g.mu.Unlock()
		began := time.Now()
		wantEOF(t, exchangeLines(t, h, g, text(5000), text(5000)))
		if took := time.Since(began); took < stall-keepAlive || took > stall+2*keepAlive {
			t.Errorf("the connection was replaced after %s, want about %s", took, stall)
		}
		if dropped == 0 {
			t.Error("the silent connection dropped 0 bytes, want some")
		}
	})
}

// blackHole takes everything and delivers nothing.
type blackHole struct {
	net.Conn
	dropped *int
}

func (b *blackHole) Write(p []byte) (int, error) {
	*b.dropped += len(p)
	return len(p), nil
}

// A line that cannot be resumed ends in time with the reason, and releases writers.
func TestLineEndsWithoutConnection(t *testing.T) {
	refused := errors.New("refused")
	for name, c := range map[string]struct {
		final bool
		life  time.Duration
		want  time.Duration
	}{
		"server is gone":    {want: ResumeTime},
		"final failure":     {final: true, want: firstDial},
		"sandbox has ended": {life: 5 * time.Second, want: 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				life, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				h := newHostLine(Dialer{
					Dial:  func(context.Context) (io.ReadWriteCloser, error) { return nil, refused },
					Final: func(error) bool { return c.final },
				})
				first, err := h.line.attach(a, bufio.NewReader(a), 0)
				must(t, err)
				go h.keep(life, first)
				if c.life > 0 {
					time.AfterFunc(c.life, func() { cancel(errors.New("the pod ended")) })
				}
				wrote := make(chan error, 1)
				go func() { _, err := h.line.Write(make([]byte, 2*lineWindow)); wrote <- err }()
				began := time.Now()
				must(t, b.Close())
				_, err = h.line.Read(make([]byte, 1))
				if took := time.Since(began); took != c.want {
					t.Errorf("the line ended after %s, want %s", took, c.want)
				}
				if werr := <-wrote; err == nil || err == io.EOF || werr == nil ||
					(c.life > 0) != (context.Cause(life) != nil) {
					t.Errorf("read: %v, write: %v; want the reason", err, werr)
				}
				if c.life == 0 && !errors.Is(err, refused) {
					t.Errorf("read: %v, want the last failure in it", err)
				}
				must(t, h.line.Close())
			})
		})
	}
}

// A guest that reads but acknowledges nothing makes the host keep no more than the window.
func TestUnacknowledgedBytesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		l := newLine()
		_, err := l.attach(a, bufio.NewReader(a), 0)
		must(t, err)
		go func() { _, _ = io.Copy(io.Discard, b) }()
		wrote := make(chan int, 1)
		go func() { n, _ := l.Write(make([]byte, 10*lineWindow)); wrote <- n }()
		synctest.Wait()
		l.mu.Lock()
		if l.out.n != lineWindow || len(l.out.b) > lineWindow {
			t.Errorf("%d bytes in a buffer of %d, want %d in %d", l.out.n, len(l.out.b), lineWindow, lineWindow)
		}
		l.mu.Unlock()
		must(t, l.Close())
		if n := <-wrote; n != lineWindow {
			t.Errorf("%d bytes were taken, want %d", n, lineWindow)
		}
		_ = b.Close()
	})
}

// An end that stays connected and acknowledges nothing does not keep writers waiting.
func TestLineEndsIfNothingIsAcknowledged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		l := newLine()
		_, err := l.attach(a, bufio.NewReader(a), 0)
		must(t, err)
		go func() { _, _ = io.Copy(io.Discard, b) }()
		var beating sync.WaitGroup
		beating.Go(func() {
			for err := error(nil); err == nil; time.Sleep(keepAlive) {
				_, err = io.WriteString(b, lineFrame(0, 0, ""))
			}
		})
		read := make(chan error, 1)
		go func() {
			_, err := l.Read(make([]byte, 1))
			read <- err
		}()
		time.Sleep(time.Hour) // without unacknowledged bytes it goes on
		_, err = l.Write([]byte("12345"))
		must(t, err)
		began := time.Now()
		if err := <-read; !errors.Is(err, errStuck) {
			t.Errorf("read: %v, want %v", err, errStuck)
		}
		if took := time.Since(began); took < stall || took > stall+2*keepAlive {
			t.Errorf("the line ended after %s, want about %s", took, stall)
		}
		must(t, l.Close())
		_ = b.Close()
		beating.Wait()
	})
}

func lineFrame(size uint32, ack uint64, data string) string {
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(nil, size), ack)
	return string(b) + data
}

// An end that breaks the protocol ends the line, not the process.
func TestInvalidFramesEndTheLine(t *testing.T) {
	for name, c := range map[string]struct{ said, want string }{
		"acknowledgement of unsent bytes": {lineFrame(0, 6, ""), "invalid acknowledgement of 6 bytes, want 0 to 5"},
		"acknowledgement taken back":      {lineFrame(0, 5, "") + lineFrame(0, 4, ""), "invalid acknowledgement of 4"},
		"frame over the limit":            {lineFrame(lineData+1, 0, ""), "frame of 65537 bytes"},
		"endless frame":                   {lineFrame(finalFrame|1, 0, ""), "bytes, at most"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := net.Pipe()
				l := newLine()
				_, err := l.attach(a, bufio.NewReader(a), 0)
				must(t, err)
				_, err = l.Write([]byte("12345"))
				must(t, err)
				_, err = io.ReadFull(b, make([]byte, lineHeader+5))
				must(t, err)
				go func() { _, _ = io.WriteString(b, c.said) }()
				if _, err := l.Read(make([]byte, 1)); err == nil || !bytes.Contains([]byte(err.Error()), []byte(c.want)) {
					t.Errorf("read: %v, want %q", err, c.want)
				}
				must(t, l.Close())
				_ = b.Close()
			})
		})
	}
}

// A guest cannot take back, or claim, what it did not acknowledge when a line is resumed.
func TestInvalidCountAtResumeEndsTheLine(t *testing.T) {
	t.Parallel()
	for _, count := range []uint64{2, 6, 1 << 63} {
		synctest.Test(t, func(t *testing.T) {
			a, b := net.Pipe()
			l := newLine()
			_, err := l.attach(a, bufio.NewReader(a), 0)
			must(t, err)
			_, err = l.Write([]byte("12345"))
			must(t, err)
			_, err = io.ReadFull(b, make([]byte, lineHeader+5))
			must(t, err)
			go func() { _, _ = io.WriteString(b, lineFrame(1, 3, "x")) }()
			_, err = l.Read(make([]byte, 1))
			must(t, err)
			l.pause(errReplaced)
			next, other := net.Pipe()
			defer other.Close()
			if _, err := l.attach(next, bufio.NewReader(next), count); err == nil {
				t.Errorf("attach with a count of %d succeeded, want an error", count)
			}
			if _, err := l.Read(make([]byte, 1)); err == nil || err == io.EOF {
				t.Errorf("read after a count of %d: %v, want an error", count, err)
			}
			must(t, l.Close())
		})
	}
}

func FuzzLineFrames(f *testing.F) {
	f.Add([]byte(lineFrame(3, 0, "abc")+lineFrame(finalFrame, 5, "")), 100)
	f.Add([]byte(lineFrame(1<<20, 1<<60, "")), 3)
	f.Fuzz(func(t *testing.T, said []byte, cut int) {
		a, b := net.Pipe()
		l := newLine()
		if _, err := l.attach(a, bufio.NewReader(a), 0); err != nil {
			t.Fatal(err)
		}
		go func() { _, _ = io.Copy(io.Discard, b) }()
		_, err := l.Write([]byte("12345"))
		must(t, err)
		go func() {
			_, _ = b.Write(said[:min(len(said), max(cut, 0))])
			_ = b.Close()
			l.fail(errors.New("the end"))
		}()
		if n, _ := io.Copy(io.Discard, l); n > int64(len(said)) {
			t.Errorf("read %d bytes, want at most the %d that were sent", n, len(said))
		}
		must(t, l.Close())
	})
}

func TestRingKeepsOrder(t *testing.T) {
	t.Parallel()
	var r ring
	var want []byte
	for i := range 10_000 {
		piece := text(rand.IntN(3000) + 1)
		if len(want)+len(piece) <= lineWindow {
			r.add(piece)
			want = append(want, piece...)
		}
		k := rand.IntN(min(len(want), 3000) + 1)
		if i%100 == 99 {
			k = len(want)
		}
		r.drop(k)
		want = want[k:]
		offset := rand.IntN(len(want) + 1)
		got := make([]byte, 100)
		if n := r.copyFrom(got, offset); !bytes.Equal(got[:n], want[offset:min(offset+100, len(want))]) {
			t.Fatalf("round %d: copyFrom(%d) = %d other bytes of %d, want those that were added", i, offset, n,
				len(want))
		}
		if r.shrink(); len(r.b) > lineWindow || len(want) == 0 && len(r.b) > 0 {
			t.Fatalf("%d bytes in a buffer of %d, want at most %d, or 0 if empty", len(want), len(r.b),
				lineWindow)
		}
	}
}
