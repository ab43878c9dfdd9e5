package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const bound = 60 * time.Second

func pair(tb testing.TB) (a, b *Conn) {
	tb.Helper()
	x, y := net.Pipe()
	for _, c := range []net.Conn{x, y} {
		if err := c.SetDeadline(time.Now().Add(bound)); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { c.Close() })
	}
	return NewConn(x), NewConn(y)
}

func TestFramesArriveWhole(t *testing.T) {
	a, b := pair(t)
	sizes := []int{0, 1, mergeBelow, mergeBelow + 1, 70_000, MaxFrame, 3, MaxFrame, 0}
	var sent sync.WaitGroup
	sent.Go(func() {
		for i, n := range sizes {
			p := bytes.Repeat([]byte{byte(i)}, n)
			err := a.WriteFrame(KindStdout, p)
			if i%2 == 1 {
				err = errors.Join(err, a.WriteRoom(KindStderr, append(make([]byte, HeaderLen), p...)))
			}
			if err != nil {
				t.Error(err)
			}
		}
		a.Close()
	})
	want := func(i int, k Kind) {
		kind, p, err := b.ReadFrame()
		if err != nil || kind != k || !bytes.Equal(p, bytes.Repeat([]byte{byte(i)}, sizes[i])) {
			t.Fatalf("frame %d = kind %q, %d bytes, %v; want kind %q, %d bytes of %d and no error",
				i, byte(kind), len(p), err, byte(k), sizes[i], byte(i))
		}
	}
	for i := range sizes {
		want(i, KindStdout)
		if i%2 == 1 {
			want(i, KindStderr)
		}
	}
	if _, _, err := b.ReadFrame(); !errors.Is(err, io.EOF) {
		t.Errorf("ReadFrame after the last frame: %v, want %v", err, io.EOF)
	}
	sent.Wait()
}

func TestManyWritersDoNotMixFrames(t *testing.T) {
	a, b := pair(t)
	var writers sync.WaitGroup
	for w := range 8 {
		writers.Go(func() {
			for range 50 {
				if err := a.WriteFrame(KindStdout, bytes.Repeat([]byte{byte(w)}, 1000*(w+1))); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 8 * 50 {
		_, p, err := b.ReadFrame()
		if err != nil || len(p) == 0 || len(p) != 1000*(int(p[0])+1) || len(bytes.Trim(p, string(p[:1]))) > 0 {
			t.Fatalf("frame = %d bytes, %v; want 1000*(w+1) bytes of value w and no error", len(p), err)
		}
	}
	writers.Wait()
}

// octets is a stream of fixed bytes.
type octets struct {
	net.Conn
	io.Reader
}

func (o octets) Read(b []byte) (int, error)      { return o.Reader.Read(b) }
func (octets) SetReadDeadline(time.Time) error   { return nil }
func (octets) SetWriteDeadline(time.Time) error  { return nil }
func (octets) Close() error                      { return nil }
func (octets) Write(b []byte) (int, error)       { return len(b), nil }
func stream(r io.Reader) *Conn                   { return NewConn(octets{Reader: r}) }
func frame(k Kind, size uint32, p string) string { return string(k) + string(be(size)) + p }
func be(n uint32) []byte                         { return binary.BigEndian.AppendUint32(nil, n) }

func TestInvalidFramesAreRefused(t *testing.T) {
	cases := map[string]struct {
		in   string
		want error
	}{
		"nothing":              {"", io.EOF},
		"part of a header":     {"Q\x00", io.ErrUnexpectedEOF},
		"header and no more":   {frame(KindStdout, 4, ""), io.ErrUnexpectedEOF},
		"part of a payload":    {frame(KindStdout, 4, "abc"), io.ErrUnexpectedEOF},
		"unknown kind":         {frame('x', 0, ""), ErrKind},
		"kind zero":            {"\x00\x00\x00\x00\x00", ErrKind},
		"data over its limit":  {frame(KindStdin, MaxFrame+1, ""), ErrTooLarge},
		"header over its own":  {frame(KindReply, MaxHeader+1, ""), ErrTooLarge},
		"end with a payload":   {frame(KindEOF, 1, "x"), ErrTooLarge},
		"the greatest length":  {frame(KindData, 1<<32-1, ""), ErrTooLarge},
		"a signal that swells": {frame(KindSignal, 1<<20, ""), ErrTooLarge},
	}
	for name, c := range cases {
		if _, _, err := stream(strings.NewReader(c.in)).ReadFrame(); !errors.Is(err, c.want) {
			t.Errorf("ReadFrame of %s: %v, want %v", name, err, c.want)
		}
	}
}

func TestLengthAloneAllocatesLittle(t *testing.T) {
	c := stream(strings.NewReader(frame(KindRequest, MaxHeader, "{}")))
	if _, _, err := c.ReadFrame(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("ReadFrame: %v, want %v", err, io.ErrUnexpectedEOF)
	}
	if len(c.in) > 64<<10 {
		t.Errorf("%d bytes allocated for 2, want at most %d", len(c.in), 64<<10)
	}
}

func TestWritersKeepTheLimits(t *testing.T) {
	c := stream(strings.NewReader(""))
	if err := c.WriteFrame(KindStdout, make([]byte, MaxFrame+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("WriteFrame: %v, want %v", err, ErrTooLarge)
	}
	if err := c.WriteRoom(KindStdout, make([]byte, HeaderLen+MaxFrame+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("WriteRoom: %v, want %v", err, ErrTooLarge)
	}
	if err := c.WriteRoom(KindStdout, nil); err == nil {
		t.Error("WriteRoom without room for a header succeeded, want error")
	}
	if err := c.WriteFrame('x', []byte("y")); !errors.Is(err, ErrTooLarge) {
		t.Errorf("WriteFrame of an unknown kind: %v, want %v", err, ErrTooLarge)
	}
	if err := c.WriteFrame(KindStdout, nil); err != nil {
		t.Errorf("a refused frame broke the stream: %v", err)
	}
}

func TestNothingFollowsTheAnswer(t *testing.T) {
	c := stream(strings.NewReader(""))
	if err := c.Reply(nil); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{c.Reply(nil), c.Fail(Internal, "", "x"), c.WriteFrame(KindStdout, nil)} {
		if !errors.Is(err, ErrEnded) {
			t.Errorf("write after the reply: %v, want %v", err, ErrEnded)
		}
	}
}

func TestWriteAfterFailureRepeatsItsError(t *testing.T) {
	a, b := pair(t)
	b.Close()
	first := a.WriteFrame(KindStdout, make([]byte, MaxFrame))
	if first == nil {
		t.Fatal("WriteFrame to a closed connection succeeded, want error")
	}
	if err := a.Reply(nil); !errors.Is(err, first) {
		t.Errorf("Reply after a failed write: %v, want %v", err, first)
	}
}

func TestFailuresAreBoundedAndReadable(t *testing.T) {
	a, b := pair(t)
	var sent sync.WaitGroup
	sent.Go(func() {
		if err := a.FailWith(Failf(NotFound, "f", "%s", strings.Repeat("é", maxMessage)+"\xff")); err != nil {
			t.Error(err)
		}
	})
	kind, p, err := b.ReadFrame()
	sent.Wait()
	var f Failure
	if err != nil || kind != KindFailure || json.Unmarshal(p, &f) != nil {
		t.Fatalf("ReadFrame = %q, %s, %v; want a failure as JSON and no error", byte(kind), p, err)
	}
	if f.Code != NotFound || f.Field != "f" || len(f.Message) > maxMessage+4 || !utf8.ValidString(f.Message) {
		t.Errorf("failure = %+v; want %s of the field f, with a message of at most %d bytes", f, NotFound, maxMessage+4)
	}
	if got := f.Error(); !strings.HasPrefix(got, "f: é") {
		t.Errorf("Error = %q, want the prefix %q", got, "f: é")
	}
}

func TestReadRequest(t *testing.T) {
	cases := map[string]string{
		"":                          `{"v":1,"op":"ping","body":{"x":1}}`,
		"version 1, the host has 2": `{"v":2,"op":"ping"}`,
		"invalid operation":         `{"v":1,"op":"` + strings.Repeat("x", 33) + `"}`,
		"invalid operation name":    `{"v":1}`,
		"decode request":            `{`,
	}
	for want, body := range cases {
		r, err := stream(strings.NewReader(frame(KindRequest, uint32(len(body)), body))).ReadRequest(HeaderTime)
		if want == "" {
			if err != nil || r.Op != OpPing || string(r.Body) != `{"x":1}` {
				t.Errorf("ReadRequest = %+v, %v; want %s with its body and no error", r, err, OpPing)
			}
			continue
		}
		if f, ok := errors.AsType[*Failure](err); !ok || !strings.Contains(f.Message, want) {
			t.Errorf("ReadRequest(%s): %v, want a failure with %q", body, err, want)
		}
	}
	if _, err := stream(strings.NewReader(frame(KindStdin, 1, "x"))).ReadRequest(HeaderTime); err == nil {
		t.Error("ReadRequest of a data frame succeeded, want error")
	}
}

func FuzzReadFrame(f *testing.F) {
	f.Add([]byte(frame(KindRequest, 2, "{}")+frame(KindStdin, 3, "abc")+frame(KindEOF, 0, "")), 3)
	f.Add([]byte(frame(KindData, 1<<31, "x")), 1)
	f.Fuzz(func(t *testing.T, in []byte, step int) {
		c := stream(&slow{in: in, step: max(1, step)})
		for total := 0; ; {
			kind, p, err := c.ReadFrame()
			if err != nil {
				return
			}
			if total += HeaderLen + len(p); total > len(in) {
				t.Fatalf("read %d bytes, want at most %d", total, len(in))
			}
			if !bytes.Equal(append(append([]byte{byte(kind)}, be(uint32(len(p)))...), p...), in[total-HeaderLen-len(p):total]) {
				t.Fatalf("frame of kind %c with %d bytes differs from the input, want the same", byte(kind), len(p))
			}
		}
	})
}

// slow returns a few bytes per Read.
type slow struct {
	in   []byte
	step int
}

func (s *slow) Read(b []byte) (int, error) {
	if len(s.in) == 0 {
		return 0, io.EOF
	}
	n := copy(b, s.in[:min(s.step, len(s.in))])
	s.in = s.in[n:]
	return n, nil
}

func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"v":1,"op":"exec","body":{"argv":["true"],"env":{"A":"b"},"timeout_ns":5}}`))
	f.Add([]byte(`{"v":1e9,"op":null}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		r, err := DecodeRequest(in)
		if err != nil {
			if _, ok := errors.AsType[*Failure](err); !ok {
				t.Errorf("DecodeRequest error = %T (%v), want *Failure", err, err)
			}
			return
		}
		if r.Version != Version || r.Op == "" {
			t.Errorf("DecodeRequest = %+v, want version %d and an operation", r, Version)
		}
		for _, v := range []any{&Command{}, &Claim{}, &Output{}, &Kill{}, &FileRequest{}, &Signal{}, &ShellRef{}} {
			_ = Decode(r.Body, v) // must not panic
		}
	})
}

func BenchmarkFrames(b *testing.B) {
	x, y := net.Pipe()
	defer x.Close()
	defer y.Close()
	a, c := NewConn(x), NewConn(y)
	go func() {
		for {
			if _, _, err := c.ReadFrame(); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, HeaderLen+MaxFrame)
	b.SetBytes(MaxFrame)
	b.ReportAllocs()
	for b.Loop() {
		if err := a.WriteRoom(KindStdout, buf); err != nil {
			b.Fatal(err)
		}
	}
}
