package guestconn

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// bridged is a Mux and its end in the guest, connected by pipes, like those of a process's stdio,
// with serve behind a unix socket.
type bridged struct {
	mux    *Mux
	ended  chan error // the result of serveMux
	cancel context.CancelCauseFunc
	stdin  *os.File // the host's end of the bridge's stdin
}

type pipes struct{ r, w *os.File }

func (p pipes) Read(b []byte) (int, error)  { return p.r.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.r.Close(), p.w.Close()) }

func bridge(t *testing.T, serve func(net.Conn)) *bridged {
	t.Helper()
	dir := filepath.Dir(socketPath(t))
	ln, err := net.Listen("unix", filepath.Join(dir, "guest.sock"))
	must(t, err)
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); serve(c) }()
		}
	}()
	guestIn, hostOut, err := os.Pipe()
	must(t, err)
	hostIn, guestOut, err := os.Pipe()
	must(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	b := &bridged{ended: make(chan error, 1), cancel: cancel, stdin: hostOut}
	go func() {
		b.ended <- serveMux(ctx, pipes{guestIn, guestOut}, func(ctx context.Context) (net.Conn, error) {
			return dial(ctx, ln.Addr().String())
		}, new(atomic.Int64))
	}()
	b.mux, err = newMux(pipes{hostIn, hostOut})
	must(t, err)
	t.Cleanup(func() {
		_ = b.mux.Close()
		cancel(nil)
		b.wait()
		_ = ln.Close()
		<-served
	})
	return b
}

func (b *bridged) wait() error {
	err := <-b.ended
	b.ended <- err
	return err
}

func TestMuxCarriesManyStreams(t *testing.T) {
	t.Parallel()
	b := bridge(t, echo)
	for range 300 { // more than the limit of open streams
		must(t, roundTrip(soon(t), b.mux, 1))
	}
	manyRoundTrips(t, b.mux, 20, 1<<20)
	must(t, b.mux.Close())
	if err := b.wait(); err != nil {
		t.Fatalf("the bridge ended with %v after the host hung up, want no error", err)
	}
	if _, err := b.mux.Open(soon(t)); !errors.Is(err, ErrClosed) {
		t.Fatalf("open after close: %v, want %v", err, ErrClosed)
	}
}

func TestMuxLimitsOpenStreams(t *testing.T) {
	t.Parallel()
	b := bridge(t, echo)
	open := make([]net.Conn, 0, maxMuxed)
	for range maxMuxed {
		c, err := b.mux.Open(soon(t))
		must(t, err)
		defer c.Close()
		open = append(open, c)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("gave up")
	time.AfterFunc(10*time.Millisecond, func() { cancel(cause) })
	if _, err := b.mux.Open(ctx); !errors.Is(err, cause) {
		t.Fatalf("open beyond the limit: %v, want %v", err, cause)
	}
	must(t, open[0].Close())
	must(t, roundTrip(soon(t), b.mux, 1))
}

func TestMuxedStreamsHaveDeadlinesAndClose(t *testing.T) {
	t.Parallel()
	b := bridge(t, echo)
	c, err := b.mux.Open(soon(t))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
	var timeout net.Error
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || !errors.As(err, &timeout) ||
		!timeout.Timeout() {
		t.Fatalf("read past the deadline: %v, want %v as a timeout", err, os.ErrDeadlineExceeded)
	}
	must(t, c.SetDeadline(time.Time{}))
	must(t, exchange(c, 1))
	read := make(chan error, 1)
	go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
	must(t, c.Close())
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Fatalf("read of a stream that was closed: %v, want %v", err, net.ErrClosed)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("write of a closed stream: %v, want %v", err, net.ErrClosed)
	}
	if err := c.Close(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("second close: %v, want %v", err, net.ErrClosed)
	}
}

func TestMuxedEOFOnlyFromGuest(t *testing.T) {
	t.Parallel()
	answer := strings.Repeat("answer ", 20_000)
	b := bridge(t, func(c net.Conn) { _, _ = io.WriteString(c, answer) })
	c, err := b.mux.Open(soon(t))
	must(t, err)
	defer c.Close()
	// The guest reads nothing and ends soon. Writes must not block indefinitely, and its answer
	// must arrive.
	go func() {
		chunk := make([]byte, 64<<10)
		for range 64 {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}()
	got, err := io.ReadAll(c)
	if err != nil || string(got) != answer {
		t.Fatalf("read %d bytes, %v; want the answer of %d and no error", len(got), err, len(answer))
	}
}

func TestBrokenStdioFailsEveryStream(t *testing.T) {
	t.Parallel()
	b := bridge(t, echo)
	read := make(chan error, 10)
	for range cap(read) {
		c, err := b.mux.Open(soon(t))
		must(t, err)
		defer c.Close()
		must(t, exchange(c, 1))
		go func() { _, err := c.Read(make([]byte, 1)); read <- err }()
	}
	b.cancel(errors.New("the bridge's process died"))
	for range cap(read) {
		if err := <-read; !errors.Is(err, ErrLost) || err == io.EOF {
			t.Errorf("read over a broken stdio: %v, want %v", err, ErrLost)
		}
	}
	select {
	case <-b.mux.Done():
	case <-time.After(patience):
		t.Fatalf("the mux is still up after %s, want it lost", patience)
	}
	if _, err := b.mux.Open(soon(t)); !errors.Is(err, ErrLost) {
		t.Errorf("open over a broken stdio: %v, want %v", err, ErrLost)
	}
	if err := b.wait(); err == nil || !strings.Contains(err.Error(), "died") {
		t.Errorf("bridge returned %v, want its context's cause", err)
	}
}

func TestBridgeEndsWithHost(t *testing.T) {
	t.Parallel()
	b := bridge(t, echo)
	c, err := b.mux.Open(soon(t))
	must(t, err)
	defer c.Close()
	must(t, exchange(c, 1))
	must(t, b.stdin.Close())
	if err := b.wait(); err != nil {
		t.Fatalf("the bridge ended with %v, want no error", err)
	}
}

func TestBridgeWithoutGuestEndsOnlyStream(t *testing.T) {
	t.Parallel()
	b := bridge(t, echo)
	host, guest := net.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- serveMux(t.Context(), guest, func(context.Context) (net.Conn, error) {
			return nil, errors.New("nobody listens")
		}, new(atomic.Int64))
	}()
	m, err := newMux(host)
	must(t, err)
	c, err := m.Open(soon(t))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(patience)))
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Fatalf("read: %v, want %v", err, io.EOF)
	}
	must(t, c.Close())
	must(t, m.Close())
	<-ended
	must(t, roundTrip(soon(t), b.mux, 1))
}

func TestMuxDropsPingFlood(t *testing.T) {
	t.Parallel()
	host, peer := net.Pipe()
	m, err := newMux(host)
	must(t, err)
	defer m.Close()
	ping := frame(framePing, 0)
	ping[3] = 1 // a query
	for range 10_000 {
		if _, err := peer.Write(ping); err != nil {
			break
		}
	}
	select {
	case <-m.Done():
	case <-time.After(patience):
		t.Fatalf("the mux is still up after %s, want it ended", patience)
	}
	_ = peer.Close()
	if _, err := m.Open(soon(t)); !errors.Is(err, ErrLost) || !errors.Is(err, errPings) {
		t.Fatalf("open: %v, want %v because of %v", err, ErrLost, errPings)
	}
}

func TestMuxDropsGarbage(t *testing.T) {
	t.Parallel()
	host, peer := net.Pipe()
	m, err := newMux(host)
	must(t, err)
	defer m.Close()
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	_, _ = peer.Write([]byte("OCI runtime exec failed: exec: no such file"))
	select {
	case <-m.Done():
	case <-time.After(patience):
		t.Fatalf("the mux is still up after %s, want it ended", patience)
	}
}

func TestMuxRefusesStreamsFromGuest(t *testing.T) {
	t.Parallel()
	host, peer := net.Pipe()
	m, err := newMux(host)
	must(t, err)
	defer m.Close()
	defer peer.Close()
	must(t, peer.SetDeadline(time.Now().Add(patience)))
	const (
		window, goAway = 1, 3
		flagSYN        = 1
		flagRST        = 8
		stream         = 2
	)
	read := func() []byte {
		f := make([]byte, frameHeader)
		if _, err := io.ReadFull(peer, f); err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := read(); f[1] != goAway {
		t.Fatalf("first frame is % x, want one that forbids streams", f)
	}
	syn := frame(window, 0)
	syn[3], syn[7] = flagSYN, stream
	_, err = peer.Write(syn)
	must(t, err)
	if f := read(); f[1] != window || f[3] != flagRST || f[7] != stream {
		t.Fatalf("answer to a stream of the guest's is % x, want a reset", f)
	}
}

func frame(kind byte, length uint32) []byte {
	f := make([]byte, frameHeader)
	f[1] = kind
	binary.BigEndian.PutUint32(f[8:], length)
	return f
}

// whole joins the data of consecutive data frames of a stream, as split by frames.
func whole(t *testing.T, b []byte) string {
	t.Helper()
	var joined strings.Builder
	var last, data []byte
	flush := func() {
		if last != nil {
			fmt.Fprintf(&joined, "%x:%x;", last[:8], data)
		}
		last, data = nil, nil
	}
	for len(b) >= frameHeader {
		head := b[:frameHeader]
		b = b[frameHeader:]
		if head[1] != frameData {
			flush()
			fmt.Fprintf(&joined, "%x;", head)
			continue
		}
		size := int(binary.BigEndian.Uint32(head[8:]))
		if size > len(b) {
			t.Fatalf("a frame announces %d bytes and %d follow, want all of them", size, len(b))
		}
		if last == nil || !bytes.Equal(last[4:8], head[4:8]) {
			flush()
			last = bytes.Clone(head)
		}
		last[2], last[3] = last[2]|head[2], last[3]|head[3]
		data = append(data, b[:size]...)
		b = b[size:]
	}
	flush()
	return joined.String()
}

// chunks returns at most n bytes at once.
type chunks struct {
	r io.Reader
	n int
}

func (c chunks) Read(b []byte) (int, error) { return c.r.Read(b[:min(len(b), c.n)]) }

// FuzzFrames checks that frames passes on the same streams however the bytes arrive, and announces
// only data that follows.
func FuzzFrames(f *testing.F) {
	f.Add(append(append(frame(frameData, 3), "abc"...), frame(framePing, 1)...), uint8(5))
	f.Add(frame(frameData, 1<<31), uint8(1))
	f.Add(append(frame(frameData, 40), bytes.Repeat([]byte("x"), 40)...), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, step uint8) {
		read := func(n int) (string, error) {
			got, err := io.ReadAll(&frames{r: chunks{bytes.NewReader(b), n}})
			return whole(t, got), err
		}
		want, wantErr := read(len(b) + 1)
		got, err := read(int(step) + 1)
		if wantErr == errPings || err == errPings { // depends on the time
			return
		}
		if got != want || err != wantErr {
			t.Fatalf("frames in parts of %d = %s, %v; want %s, %v as in one piece", int(step)+1, got, err, want,
				wantErr)
		}
	})
}

// TestCancelledReadReturnsInsideOfFrame has a guest that announces data and does not send it.
func TestCancelledReadReturnsInsideOfFrame(t *testing.T) {
	t.Parallel()
	host, peer := net.Pipe()
	m, err := newMux(host)
	must(t, err)
	defer m.Close()
	defer peer.Close()
	go func() { _, _ = io.Copy(io.Discard, peer) }()
	conn, err := m.Open(soon(t))
	must(t, err)
	data := frame(frameData, 10)
	data[7] = 1 // the stream's id
	_, err = peer.Write(append(data, 'a'))
	must(t, err)
	b := make([]byte, 10)
	if n, err := conn.Read(b); n != 1 || err != nil {
		t.Fatalf("Read = %d, %v, want the byte that has arrived", n, err)
	}
	read := make(chan error, 1)
	go func() {
		_, err := conn.Read(b)
		read <- err
	}()
	must(t, conn.SetDeadline(time.Unix(1, 0)))
	select {
	case err := <-read:
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read after its deadline = %v, want %v", err, os.ErrDeadlineExceeded)
		}
	case <-time.After(patience):
		t.Fatalf("Read waits %s after its deadline, want it to return", patience)
	}
	closed := make(chan error, 1)
	go func() { closed <- conn.Close() }()
	select {
	case err := <-closed:
		must(t, err)
	case <-time.After(patience):
		t.Fatalf("Close waits %s, want it to return", patience)
	}
}
